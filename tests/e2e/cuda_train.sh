#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Training on an emulated GPU: killed and resumed it is the uninterrupted run bit for bit, its last state is
# taken after its death, and it goes on on another device. CUDA_ROUNDS=N: so many deaths (2 unless given).
. "$(dirname "$0")/cuda.sh"
echo "seed $SEED"
rounds=${CUDA_ROUNDS:-2}
steps=$((rounds * 8 + 12))
args=(--steps $steps --dropout 0.1 --ema 0.9 --warmup 8 --eval-every 7 --eval-batches 1 --seed 3)

# Killed between checkpoints, at any instant, and at last outside of an update for certain; its state is in the GPU's
# memory, which outlives it.
run whole --every 5steps -- "${gpu[@]}" "${args[@]}"
stands_still 11 "$rounds" 8
start killed --every 100000steps --max-restarts 100 -- "${still[@]}" "${gpu[@]}" "${args[@]}" --step-ms 250
for ((round = 1; round <= rounds; round++)); do
        wait_step "$work/killed.log" $((round * 8)) 100
        [ "$round" -lt "$rounds" ] || wait_for 100 stands_at killed $((round * 8 + 2))
        between 0 400
        sleep "$(printf '0.%03d' "$picked")"
        pid_of trainer
        slay "$pid"
        wait_for 100 grep -q "restart $round from" "$output"
done
finish 100
expect_code 0
same_log "$work/whole.log" "$work/killed.log"
same_state "whole@$steps" "killed@$steps"
"$cairn" verify killed >"$work/verify.out" || die "a checkpoint is damaged"
taken=$(grep -c 'taken after its death' "$output" || true)
[ "$taken" -gt 0 ] || die "no state was taken after its death"
ok "CUDA killed $rounds times, $taken times its state was taken from the GPU's memory after its death: bit for bit"

# With everything gone: the newest checkpoint.
stands_still 12
start lost --every 4steps -- "${still[@]}" "${gpu[@]}" "${args[@]}"
wait_step "$work/lost.log" 11 100
wait_for 100 has_saved lost 4
kill_all
run lost --mode resume --every 10m -- "${gpu[@]}" "${args[@]}"
same_log "$work/whole.log" "$work/lost.log"
same_state "whole@$steps" "lost@$steps"
says "$work/lost.out" 'bit-exact'
never_says "$work/lost.out" 'not bit-exact'
ok "CUDA SIGKILL to all of it and resumed: bit for bit"

# Another GPU of the same kind changes nothing.
export CAIRN_EMU_DEVICES=2
run second --every 10m -- "${gpu[@]}" "${args[@]}" --stop-at 11
: >"$work/second.out"
run second --mode resume --every 10m -- "${tiny[@]}" --device cuda:1 "${args[@]}"
says "$work/second.out" 'device cuda -> cuda:1.*bit-exact'
never_says "$work/second.out" 'not bit-exact'
same_log "$work/whole.log" "$work/second.log"
unset CAIRN_EMU_DEVICES
ok "RESUME-9 CUDA resumed on another GPU: logged, bit for bit"

# Another device: the losses of the first steps are those of the first device, nearly; the start line says what
# differs.
args=(--steps 20 --dropout 0.1 --ema 0.9 --warmup 8 --seed 3)
run processor --every 10m -- "${tiny[@]}" "${args[@]}"
run moves --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 6
: >"$work/moves.out"
run moves --mode resume --every 10m -- "${gpu[@]}" "${args[@]}" --stop-at 13
says "$work/moves.out" 'device cpu -> cuda'
says "$work/moves.out" 'not bit-exact.*numerics.backend cpu -> cuda'
says "$work/moves.out" 'numerics.gpu nothing -> '
: >"$work/moves.out"
run moves --mode resume --every 10m -- "${tiny[@]}" "${args[@]}"
says "$work/moves.out" 'not bit-exact.*numerics.backend cuda -> cpu'
for from in 0 6 13; do
        losses_agree "$work/processor.log" "$work/moves.log" $from
done
ok "CUDA CPU -> GPU -> CPU: losses within 1e-4, the start line lists what differs"
