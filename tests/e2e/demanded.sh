#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# A snapshot is taken at any instant outside the update without the trainer's help: during a long
# evaluation, a stalled loader, and while the trainer is stopped. Inside the update it waits until its
# time-out, 124.
. "$(dirname "$0")/lib.sh"

# demand: takes one, which must be at the log's last step, before the trainer has moved on.
demand() { # name of the situation, run, expected step
        local before
        before=$(now_ms)
        try 0 '"committed"' "$cairn" snapshot "$2" --wait --timeout 10 --json
        local took=$(($(now_ms) - before)) step last
        step=$(json step <<<"$said")
        last=$("$helpers/trainlog" last "$work/$2.log")
        [ "$step" -eq "$3" ] || die "$1: committed step $step, not $3"
        [ "$last" -eq "$3" ] || die "$1: the trainer has gone on to step $last"
        [ "$took" -lt 5000 ] || die "$1: took $took ms"
        try 0 "✓" "$cairn" verify "$2@$3"
        ok "e $1: step $step committed in $took ms, the trainer still at $last"
}

start busy --every 10m -- "${tiny[@]}" --steps 60 --step-ms 3 --eval-every 20 --eval-stall-ms 6000 \
        --stall-step 31 --stall-ms 8000 --update-stall-step 46 --update-stall-ms 8000
wait_step "$work/busy.log" 20 10
sleep 0.2 # well inside the evaluation
demand "during a long evaluation" busy 20
grep -q '"step":20,"eval_loss"' "$work/busy.log" && die "the evaluation was over"
wait_step "$work/busy.log" 30 10
sleep 0.2
demand "during a stall of the data loader" busy 30

# Once more at the same cut: it is committed already.
try 0 '"existed": true' "$cairn" snapshot busy --wait --json
ok "e asked again at the same step: the same checkpoint"

# Step 46 is half done, its line written and its state not published, soon after the log says 45.
wait_step "$work/busy.log" 45 15
sleep 0.2
before=$(now_ms)
try 124 'snapshot' "$cairn" snapshot busy --wait --timeout 1
took=$(($(now_ms) - before))
[ "$took" -ge 900 ] && [ "$took" -lt 6000 ] || die "the time-out took $took ms"
ok "e inside the update: exit 124 after $took ms"
wait_step "$work/busy.log" 47 20
try 0 committed "$cairn" snapshot busy --wait
finish 30
expect_code 0

# Stopped by the loader's stall, then by SIGSTOP: outside the update for certain.
start stopped --every 10m -- "${tiny[@]}" --steps 40 --step-ms 3 --stall-step 21 --stall-ms 5000
wait_step "$work/stopped.log" 20 10
sleep 0.1
pid_of trainer
kill -STOP "$pid"
sleep 5.2 # the stall is over, the stop is not
demand "under SIGSTOP" stopped 20
kill -CONT "$pid"
finish 30
expect_code 0
ok "e the trainer went on after SIGCONT"

# Two ranks that are in different places: one evaluates for long and the other waits for it in a collective, then the
# other has a slow batch and the first waits. Neither comes to a step's end meanwhile.
if [ -e "$BUILD/cairn-comm-gloo.so" ]; then
        # shellcheck disable=SC2016 # each rank's shell
        start two --nproc-per-node 2 --every 10m -- sh -c 'case $RANK in
                0) set -- "$@" --eval-stall-ms 8000 ;;
                1) set -- "$@" --stall-step 31 --stall-ms 8000 ;;
                esac; exec "$@"' sh "${tiny[@]}" --steps 60 --step-ms 3 --eval-every 20 --eval-batches 1 \
                --log "$work/two.log"
        wait_step "$work/two.log" 20 20
        sleep 0.2
        demand "GROUP-h rank 0 evaluates, rank 1 waits for it" two 20
        grep -q '"step":20,"eval_loss"' "$work/two.log" && die "the evaluation was over"
        wait_step "$work/two.log" 30 20
        sleep 0.2
        demand "GROUP-h rank 1 has a slow batch, rank 0 waits for it" two 30
        [ "$("$cairn" status two --json | json runs.0.gate_expired)" -eq 0 ] || die "a gate expired"
        finish 40
        expect_code 0
else
        echo "NOT SHOWN: GROUP-h: cairn-comm-gloo.so is not built: gloo's headers are missing"
fi
