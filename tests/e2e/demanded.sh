#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# A snapshot is taken at any instant outside the update without the trainer's help: during a long
# evaluation, a stalled loader, and while the trainer is stopped. Inside the update it waits until its
# time-out, 124.
. "$(dirname "$0")/lib.sh"

# Where a situation is to last it lasts for longer than the test takes, and is ended with its run.
for_ever=1000000

# demand: takes one, which must be at the step where the trainers stand, in their forward pass, their evaluation or
# stopped, and before they have moved on.
demand() { # name of the situation, run, expected step
        local before
        wait_for 100 stands_at "$2" "$3"
        before=$(now_ms)
        try 0 '"committed"' "$cairn" snapshot "$2" --wait --timeout 60 --json
        local took=$(($(now_ms) - before)) step last
        step=$(json step <<<"$said")
        last=$("$helpers/trainlog" last "$work/$2.log")
        [ "$step" -eq "$3" ] || die "$1: committed step $step, not $3"
        [ "$last" -eq "$3" ] || die "$1: the trainer has gone on to step $last"
        [ "$took" -lt 20000 ] || die "$1: took $took ms" # where nothing else runs 70
        try 0 "✓" "$cairn" verify "$2@$3"
        ok "e $1: step $step committed in $took ms, the trainer still at $last"
}

start evaluates --every 10m -- "${tiny[@]}" --steps 60 --step-ms 3 --eval-every 20 --eval-stall-ms $for_ever
wait_step "$work/evaluates.log" 20 100
demand "during a long evaluation" evaluates 20
grep -q '"step":20,"eval_loss"' "$work/evaluates.log" && die "the evaluation was over"
kill_all

start loads --every 10m -- "${tiny[@]}" --steps 60 --step-ms 3 --stall-step 31 --stall-ms $for_ever
wait_step "$work/loads.log" 30 100
demand "during a stall of the data loader" loads 30

# Once more at the same cut: it is committed already.
try 0 '"existed": true' "$cairn" snapshot loads --wait --json
ok "e asked again at the same step: the same checkpoint"
kill_all

# Step 46 is half done, its line written and its state not published: stopped there, it stays so for as long as it takes.
start updates --every 10m -- "${tiny[@]}" --steps 60 --step-ms 3 --update-stall-step 46 --update-stall-ms 8000
pid_of trainer
wait_step "$work/updates.log" 46 100
kill -STOP "$pid"
[ "$(rank_says updates 0 phase)" = updating ] || die "the update was over"
before=$(now_ms)
try 124 'snapshot' "$cairn" snapshot updates --wait --timeout 1
took=$(($(now_ms) - before))
[ "$took" -ge 900 ] && [ "$took" -lt 20000 ] || die "the time-out took $took ms"
[ "$(rank_says updates 0 phase)" = updating ] || die "the update was over"
ok "e inside the update: exit 124 after $took ms"
kill -CONT "$pid"
wait_step "$work/updates.log" 47 100
try 0 committed "$cairn" snapshot updates --wait
finish 100
expect_code 0

# Stopped while its loader stalls, outside the update for certain. The stall goes on with the trainer.
start stopped --every 10m -- "${tiny[@]}" --steps 40 --step-ms 3 --stall-step 21 --stall-ms 8000
pid_of trainer
wait_step "$work/stopped.log" 20 100
wait_for 100 stands_at stopped 20
kill -STOP "$pid"
demand "under SIGSTOP" stopped 20
kill -CONT "$pid"
finish 100
expect_code 0
ok "e the trainer went on after SIGCONT"

# Two ranks that are in different places: one evaluates for long and the other waits for it in a collective, then the
# other has a slow batch and the first waits. Neither comes to a step's end meanwhile; held, they go on afterwards.
if [ -e "$BUILD/cairn-comm-gloo.so" ]; then
        two() { # run, rank, what it alone does
                # shellcheck disable=SC2016 # each rank's shell
                start "$1" --nproc-per-node 2 --every 10m -- sh -c 'rank=$1 options=$2; shift 2
                        [ "$RANK" != "$rank" ] || set -- "$@" $options; exec "$@"' sh "$2" "$3" \
                        "${tiny[@]}" --steps 60 --step-ms 3 --eval-every 20 --eval-batches 1
        }
        two one-evaluates 0 "--eval-stall-ms $for_ever"
        wait_step "$work/one-evaluates.log" 20 100
        demand "GROUP-h rank 0 evaluates, rank 1 waits for it" one-evaluates 20
        grep -q '"step":20,"eval_loss"' "$work/one-evaluates.log" && die "the evaluation was over"
        [ "$("$cairn" status one-evaluates --json | json runs.0.gate_expired)" -eq 0 ] || die "a gate expired"
        kill_all
        two one-loads 1 "--stall-step 31 --stall-ms 25000"
        wait_step "$work/one-loads.log" 30 100
        demand "GROUP-h rank 1 has a slow batch, rank 0 waits for it" one-loads 30
        [ "$("$cairn" status one-loads --json | json runs.0.gate_expired)" -eq 0 ] || die "a gate expired"
        finish 100
        expect_code 0
else
        echo "NOT SHOWN: GROUP-h: cairn-comm-gloo.so is not built: gloo's headers are missing"
fi
