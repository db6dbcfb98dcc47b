#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 700 s
#
# cairnd is killed in the middle of copying, of writing and of committing a snapshot, ROUNDS times each (2): half
# of them as the private agent of `cairn run`, which starts it again, half as a system's agent, which this script
# starts again on the same path. The trainer goes on in the same process and is reattached within a second, the
# snapshot in flight is committed or void and never torn, nothing half done stays, the next one is committed.
. "$(dirname "$0")/lib.sh"
echo "seed $SEED"
rounds=${ROUNDS:-2}
# An image of some 30 MB: copying, writing and committing take most of the time between two snapshots.
model=("$train" --data "$work/text" --layers 4 --heads 4 --width 256 --context 16 --batch 1 --seed 5 --quiet)
steps=100000           # ended by cairn stop
promised_ms=1000       # to be reattached
margin_ms=4000         # for a busy machine
longest_allowed_ms=4000 # the gate's deadline once, and the same
declare -A delay_us=([copy]=6000 [write]=40000 [commit]=4000)

connected() { # run, pid of the agent before
        local answer
        answer=$("$cairn" status "$1" --json 2>/dev/null) || return 1
        [ "$(json agent.pid <<<"$answer")" != "$2" ] && [ "$(json runs.0.ranks.0.connected <<<"$answer")" = true ]
}
is_beyond() { # run, step
        [ "$("$cairn" status "$1" --json | json runs.0.committed_step)" -gt "$2" ]
}
# The median and the maximum of the numbers in a file.
median_and_most() {
        sort -n "$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)], a[NR] }'
}
longest_step() {
        awk -F'"seconds":' '{ t = $2 + 0; if (NR > 1 && t - last > most) most = t - last; last = t }
                END { printf "%d\n", most * 1000 }' "$1"
}
# One kill in the named phase; adds a line to $work/took and counts the snapshot in flight.
kill_in() { # run, phase, function that sets $agent, function that starts it again
        local run=$1 phase=$2 step killed_ms took
        "$3"
        between 0 30000
        read -r step killed_ms < <("$helpers/phase_kill" "$agent" "$CAIRN_STORE/$run" "$phase" \
                "${delay_us[$phase]}" "$picked") || die "the agent was not killed in $phase"
        "$4"
        until connected "$run" "$agent"; do
                [ $(($(now_ms) - killed_ms)) -lt 60000 ] || die "killed in $phase: not reattached within 60 s"
        done
        took=$(($(now_ms) - killed_ms))
        echo "$took" >>"$work/took"
        [ "$took" -le $((promised_ms + margin_ms)) ] || die "killed in $phase: reattached after $took ms"
        [ "$(pids_of trainer)" = "$trainer" ] || die "killed in $phase: the trainer is another one"
        if steps_of "$run" | holds -x "$step"; then
                committed=$((committed + 1))
                try 0 '' "$cairn" verify "$run@$step"
        else
                [ "$phase" != commit ] || die "step $step was acknowledged by its rank and is not there"
                void=$((void + 1))
        fi
        wait_for 60 is_beyond "$run" "$step"
}
kill_agents() { # what, run, function that sets $agent, function that starts it again
        local phase round
        pid_of trainer
        trainer=$pid
        for phase in copy write commit; do
                committed=0 void=0
                : >"$work/took"
                for ((round = 0; round < part; round++)); do
                        kill_in "$2" "$phase" "$3" "$4"
                done
                read -r median_ms most_ms < <(median_and_most "$work/took")
                # Of a few, one slow moment of the machine may be the median.
                [ "$part" -lt 5 ] || [ "$median_ms" -le "$promised_ms" ] ||
                        die "$phase: reattached after $median_ms ms, the median"
                ok "f $1 killed $part times in $phase: reattached after $median_ms ms (median), $most_ms ms at most; the snapshot in flight was committed $committed times, void $void times"
        done
        never_says "$output" 'cairn run: .*; restart '
        "$cairn" stop "$2" >/dev/null || die "cairn stop failed"
        finish 60
        expect_code 0
        "$cairn" verify "$2" >"$work/verify.out" || die "a checkpoint is damaged"
        # Half-done attempts of killed agents were finished or thrown away by their successors.
        left=$(find "$CAIRN_STORE/$2" -maxdepth 1 -name '.pending-*' -o -maxdepth 1 -name '.stale-*')
        [ -z "$left" ] || die "there is still $left"
        longest=$(longest_step "$work/$2.log")
        [ "$longest" -le "$longest_allowed_ms" ] || die "a step took $longest ms"
        head -n "$(wc -l <"$work/reference.log")" "$work/$2.log" >"$work/head.log"
        same_log "$work/reference.log" "$work/head.log"
        ok "f $1: training went on in one process, its longest step took $longest ms"
}

run reference --every 1000steps -- "${model[@]}" --steps $steps --stop-at 40

part=$(((rounds + 1) / 2))
own_agent() {
        pid_of agent
        agent=$pid
}
# The one that was killed is followed by one that is killed, too, at some instant of its taking the run up.
kill_successor() {
        local former=$agent
        until pid_of agent && [ "$pid" != "$former" ]; do
                sleep 0.002
        done
        between 0 80
        sleep "$(printf '0.%03d' "$picked")"
        kill -KILL "$pid" || die "an agent ended by itself"
        agent=$pid killed_ms=$(now_ms)
}
start private --every 10steps --keep-last 10 -- "${model[@]}" --steps $steps
wait_step "$work/private.log" 15 60
kill_agents "private agent" private own_agent true
start twice --every 10steps --keep-last 10 -- "${model[@]}" --steps $steps
wait_step "$work/twice.log" 15 60
kill_agents "private agent and its successor" twice own_agent kill_successor

# What a killed agent left keeps the run's lock for longer than its successor has patience: cairn run waits, while
# the trainer runs and when it is restarted.
waits() {
        grep -Ec 'waiting for the run.s lock.*the lock is held' "$output" || true
}
has_waited() {
        [ "$(waits)" -gt "$waited" ]
}
take_lock() { # returns when it is held
        waited=$(waits)
        "$helpers/hold_lock" "$CAIRN_STORE/locked/marks/LOCK" 200 >"$work/held" &
        holder=$!
        wait_for 60 grep -q waiting "$work/held"
        kill -KILL "$agent"
        wait_for 60 grep -q held "$work/held"
}
let_go() { # when its successor has lost its patience once, 3 s after it was taken at the earliest
        sleep 3
        wait_for 60 has_waited
        disown "$holder"
        kill -KILL "$holder"
}
start locked --every 10steps -- "${tiny[@]}" --steps $steps --step-ms 5
wait_step "$work/locked.log" 15 60
own_agent
take_lock
let_go
wait_for 60 connected locked "$agent"
step=$("$helpers/trainlog" last "$work/locked.log")
wait_for 60 is_beyond locked "$step"
never_says "$output" '; restart '
own_agent
pid_of trainer
take_lock
kill -KILL "$pid"
let_go
wait_for 60 grep -q 'restart 1 from step' "$output"
step=$("$helpers/trainlog" last "$work/locked.log") # beyond it only the second life comes
wait_for 60 is_beyond locked "$step"
"$cairn" stop locked >/dev/null || die "cairn stop failed"
finish 60
expect_code 0
ok "f the run's lock is held for 3 s: cairn run waits, the trainer goes on, a restart follows"

# In the middle of a restore the trainer waits for bytes that the agent's successor has to read anew.
killed_in_restore() {
        "$cairn" stop restored >/dev/null || die "cairn stop failed"
        finish 60
        resumed=$(newest_step_of restored)
        CAIRN_FAULT=restore-read:0:delay:400 start restored --mode resume --every 10steps -- "${tiny[@]}" \
                --steps $steps --step-ms 5
        pid_of saver
        sleep 0.15
        own_agent
        kill -KILL "$agent"
        wait_step "$work/restored.log" $((resumed + 20)) 60
        never_says "$output" '; restart '
}
start restored --every 10steps -- "${tiny[@]}" --steps $steps --step-ms 5
wait_step "$work/restored.log" 15 60
killed_in_restore
killed_in_restore
"$cairn" stop restored >/dev/null || die "cairn stop failed"
finish 60
expect_code 0
ok "f killed in the middle of a restore: the trainer resumes step $resumed all the same"

part=$((rounds - part))
[ "$part" -gt 0 ] || exit 0
start_agent() {
        "$BUILD/cairnd" --store "$CAIRN_STORE" --socket "$work/cairnd.sock" >>"$work/cairnd.out" 2>&1 &
        current=$!
        disown "$current"
}
start_again() {
        wait_for 60 gone "$current" # else the new one finds its socket answering
        start_agent
}
system_agent() {
        agent=$current
}
export CAIRN_SOCKET=$work/cairnd.sock
start_agent
wait_for 60 answers "$CAIRN_SOCKET"
start system --every 10steps --keep-last 10 -- "${model[@]}" --steps $steps
wait_step "$work/system.log" 15 60
kill_agents "system's agent" system system_agent start_again
kill -TERM "$current"
