#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# cairnd is killed at random instants of copying, writing and committing, ROUNDS times (10): as the private
# agent of `cairn run`, which starts it again, and as a system's agent, which this script starts again on the
# same path. The trainer goes on in the same process, is reattached within a second, what was in flight is
# committed or void, nothing half done stays, and the next scheduled snapshot is committed.
. "$(dirname "$0")/lib.sh"
echo "seed $SEED"
rounds=${ROUNDS:-10}
# An image of some 30 MB: copying, writing and committing take most of the time between two snapshots.
model=("$train" --data "$work/text" --layers 4 --heads 4 --width 256 --context 16 --batch 1 --seed 5 --quiet)
steps=100000 # ended by cairn stop

connected() { # run, pid of the agent before
        local answer
        answer=$("$cairn" status "$1" --json 2>/dev/null) || return 1
        [ "$(json agent.pid <<<"$answer")" != "$2" ] && [ "$(json runs.0.ranks.0.connected <<<"$answer")" = true ]
}
is_beyond() { # run, step
        [ "$("$cairn" status "$1" --json | json runs.0.committed_step)" -gt "$2" ]
}
# Sets $slowest_ms.
kill_agents() { # run, function that sets $agent, function that starts it again
        local round began newest trainer
        slowest_ms=0
        pid_of trainer
        trainer=$pid
        for ((round = 0; round < rounds; round++)); do
                between 0 400
                sleep "$(printf '0.%03d' "$picked")"
                "$2"
                kill -KILL "$agent" || die "the agent ended by itself"
                began=$(now_ms)
                "$3"
                until connected "$1" "$agent"; do
                        [ $(($(now_ms) - began)) -lt 10000 ] || die "round $round: not reattached within 10 s"
                done
                took=$(($(now_ms) - began))
                [ "$took" -le "$slowest_ms" ] || slowest_ms=$took
                [ "$(pids_of trainer)" = "$trainer" ] || die "round $round: the trainer is another one"
                newest=$("$cairn" status "$1" --json | json runs.0.committed_step)
                wait_for 20 is_beyond "$1" "$newest"
        done
        ! grep -q 'cairn run: .*; restart ' "$output" || die "the trainer was restarted"
        "$cairn" stop "$1" >/dev/null || die "cairn stop failed"
        finish 30
        expect_code 0
        "$cairn" verify "$1" >"$work/verify.out" || die "a checkpoint is damaged"
        # Half-done attempts of killed agents were finished or thrown away by their successors.
        left=$(find "$CAIRN_STORE/$1" -maxdepth 1 -name '.pending-*' -o -maxdepth 1 -name '.stale-*')
        [ -z "$left" ] || die "there is still $left"
        last=$(newest_step_of "$1") rolled=$(grep -c "rolled forward" "$output" || true)
        [ "$slowest_ms" -le 2000 ] || die "one reattachment took $slowest_ms ms"
}
check_log() { # run: its first steps are the reference's
        head -n "$(wc -l <"$work/reference.log")" "$work/$1.log" >"$work/head.log"
        same_log "$work/reference.log" "$work/head.log"
}

run reference --every 1000steps -- "${model[@]}" --steps $steps --stop-at 40

own_agent() {
        pid_of agent
        agent=$pid
}
start private --every 10steps -- "${model[@]}" --steps $steps
wait_step "$work/private.log" 15 30
kill_agents private own_agent true
check_log private
ok "e private agent killed $rounds times: reattached within $slowest_ms ms, $rolled rolled forward, last checkpoint step $last"

start_agent() {
        "$BUILD/cairnd" --store "$CAIRN_STORE" --socket "$work/cairnd.sock" >>"$work/cairnd.out" 2>&1 &
        agent=$!
        disown "$agent"
}
start_again() {
        local former=$agent
        wait_for 10 gone "$former" # else the new one finds its socket answering
        start_agent
        current=$agent agent=$former
}
system_agent() {
        agent=$current
}
export CAIRN_SOCKET=$work/cairnd.sock
start_agent
current=$agent
wait_for 10 test -S "$CAIRN_SOCKET"
start system --every 10steps -- "${model[@]}" --steps $steps
wait_step "$work/system.log" 15 30
kill_agents system system_agent start_again
check_log system
kill -TERM "$current"
ok "e system's agent killed $rounds times: reattached within $slowest_ms ms, $rolled rolled forward, last checkpoint step $last"
