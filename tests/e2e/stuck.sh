#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# Storage that takes calls and never answers, in the data of a checkpoint alone: reserving, writing, syncing,
# closing. Nobody waits for it: training goes on and status answers. What has not ended by
# storage_timeout_s is given up together with its saver, whose staging and files are never used again, and
# when the storage answers, the next checkpoint commits without a restart of anything.
. "$(dirname "$0")/mounts.sh"

mount_passfs || skip "$why"
CAIRN_STORE=$mounted/store
printf '%s\n' 'storage_timeout_s = 3' 'log_level = info' >"$work/agent.conf"
export CAIRN_SOCKET=$work/agent.sock
"$BUILD/cairnd" --config "$work/agent.conf" --socket "$CAIRN_SOCKET" >"$work/agent.out" 2>&1 &
agent=$!
wait_for 60 answers "$CAIRN_SOCKET"
# The image is so large that a copy has to be written in several requests.
model=("$train" --data "$work/text" --layers 2 --heads 2 --width 128 --context 16 --batch 1 --quiet)
start demo --every 20steps -- "${model[@]}" --steps 1000000 --step-ms 3
wait_step "$work/demo.log" 45 60
pid_of trainer
trainer_pid=$pid

json_of_run() { # path
        "$cairn" status demo --json | json "runs.0.$1"
}
newer_than() { # step
        [ "$(json_of_run committed_step)" -gt "$1" ]
}
wait_for 60 newer_than 0
another_saver() {
        local now
        now=$(json_of_run ranks.0.saver_pid)
        [ "$now" -ne 0 ] && [ "$now" -ne "$saver" ]
}
# The longest time from one step to the next since line N, in ms.
longest_step() {
        tail -n "+$1" "$work/demo.log" | awk -F'"seconds":' \
                '{ t = $2 + 0; if (NR > 1 && t - last > most) most = t - last; last = t } END { printf "%d\n", most * 1000 }'
}

is_stuck() { # a write: the same one for a second
        local attempt
        attempt=$(json_of_run snapshot.attempt) && [ "$(json_of_run snapshot.stage)" = writing ] && sleep 1 &&
                [ "$(json_of_run snapshot.attempt)" = "$attempt" ]
}
# hangs NAME words...: with this weather an attempt never ends.
hangs() {
        local what=$1 before line began longest took
        shift
        before=$(json_of_run attempts_failed)
        saver=$(json_of_run ranks.0.saver_pid)
        line=$(wc -l <"$work/demo.log")
        if [ "$*" = hang ]; then # in the middle of a write, or no saver would wait for the storage
                weather hang on=.data
                wait_for 60 is_stuck
        fi
        weather "$@"
        wait_step "$work/demo.log" $(($("$helpers/trainlog" last "$work/demo.log") + 100)) 60
        began=$(now_ms)
        try 0 'committed' "$cairn" status demo
        took=$(($(now_ms) - began))
        [ "$took" -lt 20000 ] || die "$what: cairn status took $took ms"
        wait_for 60 another_saver
        says "$work/agent.out" "saver_pid=$saver saver=stuck"
        [ "$(json_of_run attempts_failed)" -gt "$before" ] || die "$what: no checkpoint failed"
        before=$(json_of_run committed_step)
        weather
        wait_for 60 newer_than "$before"
        wait_for 60 gone "$saver"
        [ "$(json_of_run ranks.0.savers_stuck)" -eq 0 ] || die "$what: a stuck saver is left"
        gone "$trainer_pid" && die "$what: the trainer was ended"
        gone "$agent" && die "$what: the agent was ended"
        longest=$(longest_step "$line")
        [ "$longest" -lt 4000 ] || die "$what: a step took $longest ms"
        try 0 '' "$cairn" verify demo
        ok "$what: status answers after $took ms, the longest step took $longest ms, another saver, and commits again"
}
hangs "the data hangs" hang on=.data
hangs "the manifest hangs" hang on=.manifest
hangs "everything hangs" hang

# Only closing never ends: cairnd holds no file of the store, and the saver waits for none.
line=$(wc -l <"$work/demo.log")
weather noclose on=rank-
for round in 1 2 3 4 5; do
        wait_step "$work/demo.log" $(($("$helpers/trainlog" last "$work/demo.log") + 100)) 60
        began=$(now_ms)
        try 0 'committed' "$cairn" status demo
        took=$(($(now_ms) - began))
        [ "$took" -lt 20000 ] || die "closing hangs: cairn status took $took ms in round $round"
done
before=$(json_of_run committed_step)
weather
wait_for 60 newer_than "$before"
longest=$(longest_step "$line")
[ "$longest" -lt 4000 ] || die "closing hangs: a step took $longest ms"
ok "closing hangs: status answers after $took ms, the longest step took $longest ms, and commits again"

"$cairn" stop demo >/dev/null || die "cairn stop failed"
finish 60
expect_code 0
never_says "$output" '; restart '
kill "$agent"
wait_for 60 gone "$agent"
