#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A time budget is one for all lives of a run (RESUME 34): killed twice, and once together with everything,
# training stops when the time spent training is used up, at the very step; time never goes back, and time
# in which nothing ran does not count.
. "$(dirname "$0")/lib.sh"
seconds=8
args=(--steps 1000000 --step-ms 10 --max-seconds $seconds --eval-every 20 --eval-batches 1)

began=$(now_ms)
stands_still 14 3 13 # what it waits for a kill is lost with it, and not counted
start budget --every 5steps --max-restarts 10 -- "${still[@]}" "${tiny[@]}" "${args[@]}"
for step in 10 25; do
        wait_step "$work/budget.log" $step 100
        pid_of trainer
        slay "$pid"
done
wait_step "$work/budget.log" 39 100
kill_all
left=$("$helpers/trainlog" last "$work/budget.log")
spent_before=$(tail -n 1 "$work/budget.log" | sed 's/.*"seconds":\([0-9.]*\)}/\1/')
sleep 2 # nothing runs: this is nobody's training time
start budget --mode resume --every 5steps -- "${tiny[@]}" "${args[@]}"
finish 100
expect_code 0
took=$(($(now_ms) - began))
says "$output" 'the run is finished: time is up'
awk -F'"seconds":' -v budget=$seconds '
        { t = $2 + 0; if (t < last) { print "time goes back at line " NR; bad = 1 } last = t }
        /"loss":/ && !/"eval_loss":/ { if (over) { print "a step after the budget: " $0; bad = 1 }; over = t > budget } # 8.000 may be 7.9996
        END { if (last < budget) { print "it stopped after " last " s"; bad = 1 } exit bad }' "$work/budget.log" >"$work/judged" ||
        die "$(cat "$work/judged")"
used=$(tail -n 1 "$work/budget.log" | sed 's/.*"seconds":\([0-9.]*\)}/\1/')
# The pause of 2 s was not counted: the budget was spent in wall time that is longer by it.
[ "$took" -ge $((seconds * 1000 + 1900)) ] || die "the pause was counted: $took ms"
try 0 "finished at step $(newest_step_of budget)" "$cairn" list budget
try 66 'finished' "$cairn" run --run budget --mode resume -- "${tiny[@]}" "${args[@]}"
ok "RESUME-34 killed at steps 10, 25 and $left ($spent_before s): $used s of $seconds in $((took / 1000)) s"
