#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 600 s
#
# A full disk, a cairnd that is stopped (SIGSTOP), a store that hangs and one that is read-only, each for
# OUTAGE_SECONDS (5) in the middle of training: one message that says what, where and what it means; no step
# waits longer than the gate may, and none a second time; the next checkpoint afterwards commits without a
# restart of anything.
. "$(dirname "$0")/mounts.sh"
seconds=${OUTAGE_SECONDS:-5}
gate_ms=2000 margin_ms=2500

committed_step() {
        "$cairn" status "$1" --json | json runs.0.committed_step
}
newer_than() { # run, step
        [ "$(committed_step "$1")" -gt "$2" ]
}
# The times in ms of the steps from the line after $2 on that took longer than the gate's deadline.
slow_steps() { # log, lines before
        awk -F'"seconds":' -v from="$2" -v limit="$gate_ms" '{
                t = $2 * 1000
                if (NR > from && NR > 1 && t - last >= limit) printf "%d\n", t - last
                last = t
        }' "$1"
}
begin_run() { # name
        start "$1" --every 20steps -- "${tiny[@]}" --steps 1000000 --step-ms 3
        wait_step "$work/$1.log" 45 60
        wait_for 60 newer_than "$1" 0
        pid_of trainer
        trainer_pid=$pid
        pid_of agent
        agent_pid=$pid
}
end_run() { # name
        "$cairn" stop "$1" >/dev/null || die "cairn stop failed"
        finish 60
        expect_code 0
        try 0 '' "$cairn" verify "$1"
        never_says "$output" '; restart [0-9]'
        head -n "$(wc -l <"$work/reference.log")" "$work/$1.log" >"$work/head.log"
        same_log "$work/reference.log" "$work/head.log"
}

# outage RUN WHAT MESSAGE AGAIN BEGIN END N: functions that begin and end it; what is to be said, and when it is
# over, once, or up to N times where it may end by itself in between
outage() {
        local run=$1 what=$2 message=$3 again=$4 log=$work/$1.log lines log_lines step slow took
        lines=$(wc -l <"$output") log_lines=$(wc -l <"$log")
        "$5"
        wait_step "$log" $(($("$helpers/trainlog" last "$log") + 30)) 60
        sleep "$seconds"
        step=$("$helpers/trainlog" last "$log")
        wait_step "$log" $((step + 30)) 60
        "$6"
        took=$(now_ms)
        wait_for 60 newer_than "$run" "$step"
        took=$(($(now_ms) - took))
        gone "$trainer_pid" && die "$what: the trainer was ended"
        gone "$agent_pid" && die "$what: the agent was ended"
        wait_for 60 eval "tail -n '+$((lines + 1))' '$output' | holds -E '$again'"
        tail -n "+$((lines + 1))" "$output" | grep -Ev "$again" >"$work/said" || true
        # While a disk fills up pruning may make room for one more: that is two outages.
        [ "$(wc -l <"$work/said")" -eq "$(tail -n "+$((lines + 1))" "$output" | grep -Ec "$again")" ] ||
                die "$what: not one message and one that it is over: $(tail -n "+$((lines + 1))" "$output")"
        [ "$(wc -l <"$work/said")" -le "$7" ] || die "$what: too many messages: $(cat "$work/said")"
        says "$work/said" "$message"
        slow=$(slow_steps "$log" "$log_lines")
        [ "$(grep -c . <<<"$slow")" -le 1 ] || die "$what: more than one step waited: $slow"
        [ "${slow:-0}" -le $((gate_ms + margin_ms)) ] || die "$what: a step took $slow ms"
        ok "d $what for $seconds s: $(wc -l <"$work/said") message, ${slow:-no step over $gate_ms} ms, committed $took ms after it: $(cat "$work/said")"
}

# Again and again: what pruning frees is enough for one more checkpoint.
fill() {
        (
                while :; do
                        cat /dev/zero >>"$mounted/ballast" 2>/dev/null || true
                        sleep 0.02
                done
        ) &
        filler=$!
}
empty() {
        kill "$filler"
        wait "$filler" 2>/dev/null || true
        rm "$mounted/ballast"
}
stop_agent() {
        kill -STOP "$agent_pid"
}
continue_agent() {
        kill -CONT "$agent_pid"
}
hang() {
        weather hang
}
# It begins when the next pruning has renamed what goes.
hang_pruning() {
        weather hang on=.trash-
}
forbid() {
        weather readonly
}
answer() {
        weather
}

run reference --every 1000steps -- "${tiny[@]}" --steps 1000000 --stop-at 1200
store_again='checkpoint=again '

mount_image ext4 32 || mount_tmpfs 16m
kind=$(stat -f -c %T "$mounted")
CAIRN_STORE=$mounted/store
begin_run disk
outage disk "a full $kind" "checkpoint=failed store=\"$CAIRN_STORE\" .*No space left.*free space" "$store_again" fill empty 3
outage disk "a stopped cairnd" "agent.* does not answer.*training goes on" 'agent answers again' stop_agent continue_agent 1
end_run disk

mount_passfs || skip "$why"
CAIRN_STORE=$mounted/store
begin_run hang
outage hang "a store that hangs" "storage=silent store=\"$CAIRN_STORE\" .*training goes on" "$store_again" hang answer 1
outage hang "a store that hangs while it prunes" "storage=silent store=\"$CAIRN_STORE\" .*training goes on" "$store_again" hang_pruning answer 1
outage hang "a read-only store" "checkpoint=failed store=\"$CAIRN_STORE\" .*Read-only file system" "$store_again" forbid answer 1
end_run hang
