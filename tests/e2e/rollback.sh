#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Gradients that are not finite (RESUME 41): a passing fault is rolled back and replayed in full, as if it had
# not been; one that stays is given up after going back three times; and only what is not finite counts: a loss
# of zero, or one that never improves, is no reason.
. "$(dirname "$0")/lib.sh"
args=(--steps 60 --seed 11 --dropout 0.1)
run whole --every 10m -- "${tiny[@]}" "${args[@]}"

# In its first life only, from step 25 on; the third one in a row ends the trainer.
cat >"$work/passing" <<EOS
#!/bin/sh
[ "\$CAIRN_RESTART_COUNT" != 0 ] || set -- "\$@" --nan-step 25
exec "$train" "\$@"
EOS
chmod 755 "$work/passing"
start passing --every 10steps --keep-last 20 --max-restarts 10 -- "$work/passing" "${tiny[@]:1}" "${args[@]}" \
        --step-ms 3 --log "$work/passing.log"
finish 60
expect_code 0
says "$output" 'gradients were not finite 3 times in a row at step 27'
says "$output" 'restart 2 from before step 27'
[ "$(grep -c '; restart ' "$output")" -le 3 ] || die "more than three rollbacks"
same_log "$work/whole.log" "$work/passing.log"
same_state whole@60 passing@60
steps=$("$cairn" inspect passing@60 --tensors --json | json 'tensors.*.true_step' | grep -Ev '^(null)?$' | sort -u)
[ "$steps" = 60 ] || die "optimizer steps after the replay: $steps"
ok "RESUME-41 a passing fault: rolled back, replayed, $steps optimizer steps, the same bits as without it"

start staying --every 5steps --keep-last 20 --max-restarts 100 -- "${tiny[@]}" "${args[@]}" --step-ms 3 --nan-step 42
finish 60
expect_code 1
says "$output" 'giving up: it failed after step 44 again, and going back 3 times did not help'
[ "$(grep -c 'restart [0-9]* from before step' "$output")" -eq 3 ] || die "not three times back"
try 0 '✓ .*\n*' "$cairn" verify staying
ok "RESUME-41 a fault that stays: back three times, then given up with the trainer's status"

# One class: the loss is zero from the first step on.
tr '0-9\n' 'aaaaaaaaaaa' <"$work/text" >"$work/same"
one=("$train" --data "$work/same" --vocab char --layers 1 --heads 2 --width 16 --context 16 --batch 2 --quiet)
run zero --every 10steps -- "${one[@]}" --steps 30 --eval-every 5 --eval-batches 1
grep -q '"loss":0,' "$work/zero.log" || die "the loss is not zero: $(head -n 1 "$work/zero.log")"
never_says "$output" '; restart |not finite'
# A rate of zero: nothing ever improves.
run flat --every 10steps -- "${tiny[@]}" --steps 30 --eval-every 5 --eval-batches 1 --lr 0 --min-lr 0
never_says "$output" '; restart |not finite'
ok "RESUME-41 a loss of zero, or one that never improves, is no reason to go back"
