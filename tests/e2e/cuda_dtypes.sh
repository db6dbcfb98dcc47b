#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# FP32, BF16 and FP16 weights on an emulated GPU: every tensor comes back in its type with every bit, masters and
# moments FP32, steps FP32 with their int64 (B07, B08, B22), and so do statistics that the forward pass changes.
. "$(dirname "$0")/cuda.sh"
args=(--steps 10 --ema 0.9 --dropout 0.1 --warmup 4 --loss-scale-growth 4 --batchnorm-demo)

types_of() { # checkpoint: "role dtype", each once
        "$cairn" inspect "$1" --tensors --json | json 'tensors.*.role&dtype' | sort -u
}
for dtype in fp32:f32 bf16:bf16 fp16:f16; do
        option=${dtype%:*} stored=${dtype#*:}
        run "whole-$option" --every 10m -- "${gpu[@]}" "${args[@]}" --dtype "$option" --overflow-step 5
        run "$option" --every 10m -- "${gpu[@]}" "${args[@]}" --dtype "$option" --overflow-step 5 --stop-at 6
        run "$option" --mode resume --every 10m -- "${gpu[@]}" "${args[@]}" --dtype "$option"
        same_log "$work/whole-$option.log" "$work/$option.log"
        same_state "whole-$option@10" "$option@10"
        "$cairn" diff --tensors "whole-$option@10" "$option@10" >"$work/diff.out" ||
                die "cairn diff: the resumed $option run is another"
        expected=$(printf '%s\n' "buffer f32" "ema f32" "moment1 f32" "moment2 f32" "parameter $stored" "step f32")
        [ "$option" = fp32 ] || expected=$(sort -u <<<"$expected"$'\nmaster f32')
        [ "$(types_of "$option@10")" = "$expected" ] || die "$option: $(types_of "$option@10")"
        [ "$("$cairn" inspect "$option@10" --tensors --json | json 'tensors.*.role&true_step' |
                sed -n 's/^step //p' | sort -u)" = 9 ] || die "$option: the steps are not 9"
        ok "CUDA $option: every tensor in its type and every bit, an overflow skipped; 9 steps"
done

# Another type on resume is refused, unless the operator names it.
run other --every 10m -- "${gpu[@]}" "${args[@]}" --dtype bf16 --stop-at 2
try 78 'config.dtype: bf16 in the checkpoint, fp32 now' "$cairn" run --run other --mode resume -- \
        "${gpu[@]}" "${args[@]}" --dtype fp32
ok "CUDA another type is refused, with what differs"
