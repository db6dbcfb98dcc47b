#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Going back on purpose: --from 20 makes a new branch; a crash on it resumes on it; the old one is listed
# as abandoned and never chosen; a step that exists on the old branch is written again (B03b).
. "$(dirname "$0")/lib.sh"
args=(--steps 60 --step-ms 80)
run reference --every 10m -- "${tiny[@]}" --steps 60
start trip --every 10steps --keep-last 20 -- "${tiny[@]}" "${args[@]}" --stop-at 40
save_each trip 1 10 20 30
finish 100
expect_code 0
old=$(newest_of trip)
[ "$(steps_of trip | tr '\n' ' ')" = "10 20 30 40 " ] || die "steps: $(steps_of trip | tr '\n' ' ')"

start trip --from 20 --every 10steps --keep-last 20 -- "${tiny[@]}" "${args[@]}" \
        --stall-step 46 --stall-ms 1000000
wait_for 100 eval "[ \"\$('$helpers/trainlog' last '$work/trip.log')\" -lt 40 ]" # it has cut the log back
save_each trip 2 30
wait_step "$work/trip.log" 45 100
wait_for 100 test -e "$CAIRN_STORE/trip/000000000040-g0002"
kill_all
says "$output" 'resumes step 20 '
ok "B03b went back from step 40 to step 20"

"$cairn" list trip >"$work/list.out"
grep -E "^$old .*abandoned branch" "$work/list.out" >/dev/null || die "$old is not listed as abandoned"
grep -E "^[0-9]+-g0001 +30 .*abandoned branch" "$work/list.out" >/dev/null ||
        die "step 30 of the old branch is not listed as abandoned"
grep -E "^[0-9]+-g0001 +20 .*abandoned" "$work/list.out" >/dev/null && die "the parent is not abandoned"
# Step 30 and 40 exist on both branches; each is whole.
for checkpoint in 000000000030-g0001 000000000030-g0002 000000000040-g0001 000000000040-g0002; do
        try 0 '✓' "$cairn" verify "trip/$checkpoint"
done
ok "B03b steps 30 and 40 were written again; the old ones are listed as abandoned"

: >"$output"
start trip --mode auto --every 10steps --keep-last 20 -- "${tiny[@]}" "${args[@]}"
finish 100
expect_code 0
resumed=$(sed -n 's/.*resumes step \([0-9]*\) from .*-g0002$/\1/p' "$output")
[ "${resumed:-0}" -ge 40 ] || die "did not resume on the new branch"
same_log "$work/reference.log" "$work/trip.log"
ok "B03b after a crash --mode auto resumed step $resumed of the new branch; the log is the reference's"

# A --from that names nothing changes nothing.
before=$(digest "$CAIRN_STORE")
try 66 'no checkpoint of step 33' "$cairn" run --run trip --from 33 -- "${tiny[@]}"
[ "$(digest "$CAIRN_STORE")" = "$before" ] || die "a refused --from changed the store"
ok "--from a step that is not there: 66, nothing changed"
