#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Orderly ends: Ctrl-C, Ctrl-C twice, `cairn stop`, SIGTERM to `cairn run` and to the trainer at random
# moments (B48). The saved step is the log's last one, and the run continues from it.
. "$(dirname "$0")/lib.sh"
echo "seed $SEED"
args=(--steps 100000 --accumulate 2 --dropout 0.1 --ema 0.9 --step-ms 1)

expect_saved() { # run: its newest checkpoint is at the log's last step
        local newest last
        newest=$(steps_of "$1" | tail -n 1)
        last=$("$helpers/trainlog" last "$work/$1.log")
        [ "${newest:--1}" -eq "$last" ] || die "$1: saved step ${newest:-none}, the log ends at $last"
}

start interrupted --every 10m -- "${tiny[@]}" "${args[@]}"
wait_step "$work/interrupted.log" 30 60
kill -INT "$runner"
finish 60
expect_code 130
expect_saved interrupted
ok "Ctrl-C once: one snapshot at step $(steps_of interrupted), exit 130"

# The loader is stalled for longer than anybody waits: the first Ctrl-C cannot end the trainer.
start twice --every 10m -- "${tiny[@]}" "${args[@]}" --stall-step 21 --stall-ms 100000
wait_step "$work/twice.log" 20 60
kill -INT "$runner"
wait_for 60 grep -q 'again: end at once' "$output"
sleep 0.3
kill -0 "$runner" || die "the first Ctrl-C ended a stalled trainer at once"
kill -INT "$runner"
finish 60
[ "$code" -ne 0 ] || die "exit 0 after a forced end"
ok "Ctrl-C twice ends at once, exit $code"

# As timeout(1) does: to its child, and to the group that the child is of. Judged is what was a moment, for whom it was
# sent to as well: on a busy machine that is not each time so.
exec {never}<> <(:)
for try in 1 2 3 4 5 6 7 8 9 10 11 12; do
        start "pair$try" --every 10m -- "${tiny[@]}" --steps 4000 --step-ms 5
        wait_step "$work/pair$try.log" 3 60
        from=${EPOCHREALTIME/[.,]/}
        kill -TERM "$runner"
        read -rt 0.01 -u "$never" || true
        kill -TERM "$runner"
        took=$((${EPOCHREALTIME/[.,]/} - from))
        finish 60
        [ "$took" -gt 50000 ] || grep -q 'ending at once' "$output" || break
done
[ "$took" -le 50000 ] || die "two signals took $took us in the last of $try tries"
expect_code 75
never_says "$output" 'ending at once'
[ -n "$(steps_of "pair$try")" ] || die "SIGTERM twice in a moment: no snapshot was taken"
ok "SIGTERM several times in a moment is one: one snapshot"

start stopped --every 10m -- "${tiny[@]}" "${args[@]}"
wait_step "$work/stopped.log" 30 60
try 0 'stopped; step [0-9]+ is committed' "$cairn" stop stopped
finish 60
expect_saved stopped
[ "$(sed 's/.*step \([0-9]*\) .*/\1/' <<<"$said")" = "$(steps_of stopped)" ] || die "says: $said"
ok "cairn stop: $said"
start stopped --mode resume -- "${tiny[@]}" "${args[@]}"
wait_step "$work/stopped.log" $(($(steps_of stopped) + 5)) 60
try 0 'stopped' "$cairn" stop stopped
finish 60
ok "a stopped run resumes"

for round in 1 2 3 4 5 6 7 8; do
        start "term-$round" --every 7steps -- "${tiny[@]}" "${args[@]}"
        wait_step "$work/term-$round.log" 3 60
        between 0 250
        sleep "0.$(printf %03d "$picked")"
        if ((round % 2)); then
                kill -TERM "$runner"
        else
                pid_of trainer
                kill -TERM "$pid"
        fi
        finish 60
        expect_code 75
        expect_saved "term-$round"
done
ok "B48 SIGTERM at 8 random moments: exit 75, the saved step is the log's last"

# What a scheduler or a terminal sends to all processes of a job: a notice and a hang-up are the like of SIGTERM, however
# often they come; the rest is no affair of `cairn run`, nor of its agent, nor of the agent's processes.
ours() { # signal: to all that is not the trainer
        local pid
        for pid in "$runner" $(pids_of agent) $(pids_of saver) $(pids_of store); do
                kill "-$1" "$pid" 2>/dev/null || true # some may have ended
        done
}
start signals --every 10m -- "${tiny[@]}" "${args[@]}"
wait_step "$work/signals.log" 10 60
pid_of agent
agent=$pid
for signal in USR1 USR1; do
        ours $signal
        wait_step "$work/signals.log" $(($("$helpers/trainlog" last "$work/signals.log") + 10)) 60
done
kill -HUP "$agent"
kill -USR2 "$agent"
wait_step "$work/signals.log" $(($("$helpers/trainlog" last "$work/signals.log") + 10)) 60
[ "$(pids_of agent)" = "$agent" ] || die "the agent did not live on"
for round in 1 2 3; do
        ours USR2
        kill -HUP "$runner" 2>/dev/null || true
done
finish 60
expect_code 75
expect_saved signals
never_says "$output" 'at once$|agent died'
(
        trap '' HUP
        exec "$cairn" run --run nohup --every 10m -- "${tiny[@]}" "${args[@]}" --log "$work/nohup.log"
) >"$work/nohup.out" 2>&1 &
runner=$! output=$work/nohup.out
wait_step "$work/nohup.log" 10 60
kill -HUP "$runner"
wait_step "$work/nohup.log" $(($("$helpers/trainlog" last "$work/nohup.log") + 10)) 60
kill -HUP "$runner"
kill -TERM "$runner"
finish 60
expect_code 75
expect_saved nohup
ok "SIGHUP and SIGUSR2 end a run as SIGTERM does; SIGUSR1, and SIGHUP under nohup, do not; none ends the agent"
left=$(find "$XDG_RUNTIME_DIR" -type f -o -type s)
[ -z "$left" ] || die "left in the runtime directory: $left"
ok "no run leaves a file in the runtime directory"

# Ranks that have not come to the agent hold nothing: they are ended at once.
for how in term stop; do
        start "early-$how" -- sleep 1000
        wait_for 60 grep -q 'starts fresh' "$output"
        if [ $how = term ]; then
                kill -TERM "$runner"
        else
                "$cairn" stop early-stop >/dev/null || die "cairn stop failed"
        fi
        finish 60
        expect_code 75
done
ok "SIGTERM and cairn stop end what has no session within seconds"
start wrapped --every 10m -- sh -c '"$@"; code=$?; sleep 1; touch '"$work"'/after; exit $code' sh \
        "${tiny[@]}" "${args[@]}" --log "$work/wrapped.log"
wait_step "$work/wrapped.log" 10 60
kill -TERM "$runner"
finish 60
expect_code 75
[ -e "$work/after" ] || die "what a wrapper does after its trainer was cut off"
ok "a wrapper has the time to end"
start lingering --every 10m -- sh -c '"$@"; exec sleep 1000' sh "${tiny[@]}" "${args[@]}" --log "$work/lingering.log"
wait_step "$work/lingering.log" 10 60
try 0 'stopped; step [0-9]+ is committed' "$cairn" stop lingering --deadline 20
expect_saved lingering
finish 60
expect_code 75
ok "what goes on after its trainer has ended has until the deadline"

# Between two lives: the trainer was killed, cairn run waits a moment before it starts the next one.
# That moment is short: on a busy machine it may be over when `cairn run` is made to stand still in it.
for try in 1 2 3 4 5 6 7 8 9 10 11 12; do
        start "between$try" --every 10steps -- "${tiny[@]}" --steps 100000 --step-ms 5
        wait_step "$work/between$try.log" 25 60
        pid_of trainer
        kill -KILL "$pid"
        wait_for 60 grep -q 'restart 1 from' "$output"
        kill -STOP "$runner"
        grep -q 'resumes step' "$output" || between=$try
        "$cairn" stop "between$try" >/dev/null || die "cairn stop failed"
        kill -CONT "$runner"
        finish 60
        [ -z "${between:-}" ] || break
done
[ -n "${between:-}" ] || die "no stop came between two lives in $try tries"
expect_code 0
ok "cairn stop between two lives holds for the next one"
