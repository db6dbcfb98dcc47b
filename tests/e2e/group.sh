#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# Two ranks of cairn-train over gloo: one is killed, stopped, terminated or started differently; what one
# suffers or wants, both do at the same step, and the losses stay those of the undisturbed run.
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
two=(--nproc-per-node 2)
args=("${tiny[@]}" --steps 60 --dropout 0.1 --ema 0.9 --eval-every 20 --eval-batches 3)

last_line() {
        "$helpers/trainlog" last "$1"
}

# A rank is killed: known and regrouped in time; the losses are the undisturbed run's. Sharing the
# optimizer's state changes no bit.
run reference "${two[@]}" --every 50steps -- "${args[@]}"
run shared "${two[@]}" --every 50steps -- "${args[@]}" --zero 1
same_log "$work/reference.log" "$work/shared.log"
stands_still 30 2 15
for zero in 0 1; do
        start "killed-$zero" "${two[@]}" --every 10steps -- "${still[@]}" "${args[@]}" --zero $zero --step-ms 8
        for rank in 1 0; do
                wait_step "$work/killed-$zero.log" $((25 - rank * 10)) 100
                pid_of_rank "killed-$zero" $rank
                before=$(now_ms)
                slay "$pid"
                restart=$((2 - rank))
                wait_for 100 grep -q "restart $restart from" "$output"
                known=$(($(now_ms) - before))
                wait_for 100 eval "[ \$(grep -c '^start ' '$output') -gt $restart ]"
                regrouped=$(($(now_ms) - before))
                [ "$known" -le 10000 ] || die "the others knew after $known ms"
                says "$output" "rank $rank was killed by SIGKILL; restart $restart from"
        done
        finish 100
        expect_code 0
        same_log "$work/reference.log" "$work/killed-$zero.log"
        same_state reference@60 "killed-0@60"
        ok "GROUP-a --zero $zero: each rank killed once, known after $known ms, regrouped after $regrouped ms, losses equal"
done
[ "$(grep -c '^{"event":"restore"' "$work/killed-0.out")" -eq 3 ] || die "not one restore line a start"
ok "RESUME-47 one restore line and one JSON object a start of two ranks"

# SIGTERM on any rank: all save the same step and end with 75.
for rank in 0 1; do
        start "term-$rank" "${two[@]}" --every 50steps -- "${args[@]}" --step-ms 300
        wait_step "$work/term-$rank.log" 3 100
        pid_of_rank "term-$rank" $rank
        kill -TERM "$pid"
        finish 100
        expect_code 75
        saved=$(newest_step_of "term-$rank")
        [ "$saved" -eq "$(last_line "$work/term-$rank.log")" ] || die "step $saved was saved, not the last one"
        "$cairn" verify "term-$rank" >/dev/null || die "what was saved is damaged"
        run "term-$rank" "${two[@]}" --mode resume --every 50steps -- "${args[@]}"
        same_log "$work/reference.log" "$work/term-$rank.log"
done
ok "RESUME-46 SIGTERM on either rank: both save the same step, 75, resumed bit for bit"

start stopped "${two[@]}" --every 50steps -- "${args[@]}" --step-ms 300
wait_step "$work/stopped.log" 3 100
try 0 '' "$cairn" stop stopped --deadline 100
finish 100
expect_code 0
[ "$(newest_step_of stopped)" -eq "$(last_line "$work/stopped.log")" ] || die "cairn stop lost a step"
ok "cairn stop: both ranks leave at the same step"

# Early stop and time budget.
lazy=("${tiny[@]}" --steps 200 --eval-every 5 --patience 3 --lr 0 --min-lr 0)
run patient "${two[@]}" -- "${lazy[@]}"
[ "$(last_line "$work/patient.log")" -eq 20 ] || die "early stop at $(last_line "$work/patient.log"), not 20"
run timed "${two[@]}" -- "${tiny[@]}" --steps 100000 --max-seconds 1 --step-ms 5
says "$work/timed.out" 'finished: time is up'
ok "early stop and time budget end both ranks at the same step"

seq 200000 204000 >"$work/differ.text"
# Ranks that were started differently end before the first step and say what differs, on which rank.
differ() { # pattern, option of rank 1
        start differ "${two[@]}" --max-restarts 3 -- sh -c "exec \"\$@\" \$([ \$RANK = 0 ] || echo $2)" sh "${args[@]}" --log "$work/differ.log"
        finish 100
        expect_code 78
        says "$output" "rank 0: compare ranks: .*$1"
        says "$output" "rank 1: compare ranks: .*$1"
        [ ! -s "$work/differ.log" ] || die "a step was made"
        rm -rf "$CAIRN_STORE/differ" "$output"
}
differ 'config.lr is 0.001[0-9]* on rank 0 and 0.002[0-9]* on rank 1' '--lr 0.002'
differ 'free.eval-every is 20 on rank 0 and 7 on rank 1' '--eval-every 7'
differ 'data.fingerprint is [0-9a-f]* on rank 0 and [0-9a-f]* on rank 1' "--data $work/differ.text"
ok "RESUME-4 other options or data on one rank: 78 before the first step, named with the rank"
