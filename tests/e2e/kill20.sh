#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# The trainer is killed at 20 random steps in a row; `cairn run` resumes it by itself each time, and the
# log ends up the uninterrupted run's, bit for bit: fp32 and bf16, with everything on that has a state of
# its own (RESUME-3, 28, 29, 31, 32, B07, B22).
. "$(dirname "$0")/lib.sh"
echo "seed $SEED"
steps=320 kills=20
stands_still 17 $kills 10
args=(--steps $steps --accumulate 2 --dropout 0.1 --ema 0.99 --loss-scale dynamic
        --loss-scale-growth 40 --overflow-step 77 --warmup 30 --decay cosine --eval-every 50
        --eval-batches 2 --seed 7)

for dtype in fp32 bf16; do
        run "reference-$dtype" --every 50steps -- "${tiny[@]}" "${args[@]}" --dtype $dtype
        start "killed-$dtype" --every 10steps --max-restarts 1000 -- \
                "${still[@]}" "${tiny[@]}" "${args[@]}" --dtype $dtype --step-ms 10
        killed=()
        for ((k = 0; k < kills; k++)); do
                between $((k * 10 + 5)) $((k * 10 + 14))
                wait_step "$work/killed-$dtype.log" "$picked" 100
                pid_of trainer
                slay "$pid"
                killed+=("$picked")
        done
        finish 110
        expect_code 0
        same_log "$work/reference-$dtype.log" "$work/killed-$dtype.log"
        same_state "reference-$dtype@$steps" "killed-$dtype@$steps"
        [ "$(grep -c 'restart [0-9]* from ' "$output")" -eq $kills ] ||
                die "there were not $kills restarts"

        ok "d $dtype: killed at steps ${killed[*]}; all log lines, host values and tensors equal"
done
