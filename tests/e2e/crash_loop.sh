#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A trainer that fails after the same step in each life: its last state is taken after each death, and does not
# hide that nothing is gained. The second failure at one step tries an older checkpoint, and so on; then it gives
# up. Exits that no restart can mend are final.
. "$(dirname "$0")/lib.sh"

# From step 25 on gradients are not finite; the third one in a row, step 27, ends the trainer with status 1.
start loop --every 10steps --keep-last 10 --max-restarts 10 -- "${tiny[@]}" --steps 100 --step-ms 60 --nan-step 25
save_each loop 1 10 20
finish 100
expect_code 1
says "$output" 'restart 1 from step 27 \(taken after its death\)'
says "$output" 'restart 2 from before step 27, for it failed twice after step 27'
says "$output" '000000000027-g0001 was passed over: it failed before'
mapfile -t resumed < <(sed -n 's/.*: resumes step \([0-9]*\) from.*/\1/p' "$output")
[ "${resumed[*]}" = "27 20 10 10" ] || die "it resumed steps ${resumed[*]}"
says "$output" 'there is none older'
says "$output" 'giving up: it failed after step 27 again, and going back 3 times did not help'
"$cairn" list loop --json | json 'checkpoints.*.step' | holds -x 27 || die "step 27 was not kept"
ok "f a crash loop at step 27 went back to steps ${resumed[*]:1:2}, then gave up"

start few --every 10steps --keep-last 10 --max-restarts 2 -- "${tiny[@]}" --steps 100 --step-ms 5 --nan-step 25
finish 100
expect_code 1
says "$output" 'giving up after 2 restarts without a new checkpoint'
ok "f no more than --max-restarts"

# Twice something passing, then not: a longer pause each time.
start passing --max-restarts 5 -- sh -c 'date +%s%N >>'"$work"'/lives; [ "$CAIRN_RESTART_COUNT" = 2 ]'
finish 100
expect_code 0
mapfile -t lives <"$work/lives"
[ ${#lives[@]} -eq 3 ] || die "${#lives[@]} lives, not three"
[ $((lives[1] - lives[0])) -ge 200000000 ] && [ $((lives[2] - lives[1])) -ge 400000000 ] ||
        die "the pauses do not grow: ${lives[*]}"
ok "RESUME-39 fail, fail, succeed: two restarts, the pauses grow"

for code in 64 65 66 73 77 78; do
        start "final-$code" --max-restarts 5 -- sh -c "exit $code"
        finish 100
        expect_code $code
        never_says "$output" '; restart '
done
ok "f RESUME-39 exits 64 to 66, 73, 77 and 78 are final"
