#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# What is left where `cairn run` was killed: a trainer that goes on late is waited for by its successor, so that only one
# of them writes the log; an agent that had not even looked at its parent ends by itself.
. "$(dirname "$0")/lib.sh"
args=(--steps 600 --accumulate 2 --dropout 0.1 --ema 0.9)
"${tiny[@]}" "${args[@]}" --without-checkpoints --log "$work/reference.log" >"$work/reference.out" 2>&1 ||
        die "the reference run failed"

start demo --every 20steps -- "${tiny[@]}" "${args[@]}" --step-ms 20
wait_step "$work/demo.log" 60 60
pid_of agent
agent=$pid
pid_of trainer
old=$pid
disown "$runner"
kill -KILL "$agent" "$runner"
wait_for 60 gone "$runner"
kill -STOP "$old" # not before: the kernel lets go on what is stopped in a group that nobody is left to look after
wait_for 60 grep -q '^State:.T' "/proc/$old/status" # what it was writing is written
stood=$("$helpers/trainlog" last "$work/demo.log")
start demo --mode auto --every 20steps -- "${tiny[@]}" "${args[@]}"
wait_for 60 grep -q 'demo: resumes step' "$output"
pid_of trainer
sleep 1
[ "$("$helpers/trainlog" last "$work/demo.log")" -eq "$stood" ] || die "two trainers write one log"
kill -0 "$pid" 2>/dev/null || die "the successor does not wait"
kill -CONT "$old"
wait_for 60 gone "$old"
finish 60
expect_code 0
same_log "$work/reference.log" "$work/demo.log"
ok "a successor waits for the trainer that a killed cairn run left; one log, every line exact"

# Its `cairn run` is gone before it looks, and so is not its parent: a number that nobody has, or another process.
sleep 0 &
nobody=$!
wait "$nobody"
for parent in "$nobody" 1; do
        "$BUILD/cairnd" --embedded "$parent" --store "$CAIRN_STORE" --socket "$work/run/left.sock" \
                >"$work/left.out" 2>&1 &
        runner=$!
        finish 60
        expect_code 0
done
ok "an agent whose cairn run is gone already ends"
