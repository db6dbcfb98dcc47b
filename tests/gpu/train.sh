#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Training on the GPU: a killed and resumed run is the uninterrupted one, bit for bit, with each kind of weights;
# a checkpoint of the CPU goes on on the GPU and back, its first losses within 1e-4.
. "$(dirname "$0")/lib.sh"

plugin=${CAIRN_CUDA:-$BUNDLE/lib/cairn/cairn-cuda.so}
grep -q cairn_cuda_compute "$plugin" 2>/dev/null || skip "not in this bundle: the trainer's part for a GPU"
seq 100000 "$(choose 160000 104000)" >"$TMPDIR/text"
steps=$(choose 120 8) half=$(choose 60 3)
common=(--data "$TMPDIR/text" --steps "$steps" --dropout 0.1 --quiet)
# What a processor can do as well, and what a GPU has some work with.
small=(--layers 2 --heads 4 --width 128 --context 64 --batch 8)
large=(--layers 6 --heads 8 --width 512 --context 256 --batch 16)
kinds=(fp32 bf16 fp16) crossing=(fp32 bf16)
if [ -n "$brief" ]; then # a simulated GPU takes its time
        small=(--vocab char --layers 1 --heads 1 --width 8 --context 8 --batch 1)
        large=("${small[@]}")
        kinds=(bf16) crossing=(fp32)
fi

run() { # name, [cairn run's options] -- [cairn-train's options]: to its end
        local name=$1 options=()
        shift
        while [ "$1" != -- ]; do
                options+=("$1")
                shift
        done
        shift
        "$cairn" run --run "$name" --max-restarts 3 "${options[@]}" -- "$train" "${common[@]}" --log "$TMPDIR/$name.log" "$@" \
                >>"$TMPDIR/$name.out" 2>&1 || {
                tail -n 20 "$TMPDIR/$name.out"
                fail "$name: cairn run failed"
        }
}
lines() { # log: what has to be the same
        sed 's/,"seconds":[^,}]*//; s/"seconds":[^,}]*,//' "$1"
}
same() { # log, log
        lines "$1" >"$TMPDIR/a"
        lines "$2" >"$TMPDIR/b"
        [ -s "$TMPDIR/a" ] || fail "${1##*/} is empty"
        cmp -s "$TMPDIR/a" "$TMPDIR/b" || {
                diff "$TMPDIR/a" "$TMPDIR/b" | head -n 6
                fail "${2##*/} is not ${1##*/}"
        }
}
# The losses of the first steps after `half`, which two logs have both.
near() { # log, log, relative
        awk -v half="$half" -v limit="$3" '
                function value(name) { match($0, "\"" name "\":[^,}]*"); return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 }
                !/"loss"/ { next }
                FNR == NR { loss[value("step")] = value("loss"); next }
                value("step") > half && value("step") <= half + 5 && (value("step") in loss) {
                        d = (value("loss") - loss[value("step")]) / loss[value("step")]; d = d < 0 ? -d : d
                        if (d > worst) worst = d
                        n++ }
                END { print worst + 0; exit !(n == 5 && worst <= limit) }' "$1" "$2" >"$TMPDIR/near" ||
                fail "${2##*/}: first losses are $(<"$TMPDIR/near") from ${1##*/}"
}
reached() { # log, step
        grep -q "\"step\":$2," "$1"
}
trainer() { # run: its process
        "$cairn" status "$1" 2>/dev/null | sed -n 's/^ *rank 0 *pid \([0-9]*\),.*/\1/p'
}

# Each kind of weights: whole, and killed twice.
for kind in "${kinds[@]}"; do
        args=("${large[@]}" --device cuda --dtype "$kind")
        [ "$kind" != fp16 ] || args+=(--loss-scale dynamic)
        run "whole-$kind" --every 10000steps -- "${args[@]}"
        "$cairn" run --run "killed-$kind" --every 5steps --max-restarts 5 -- "$train" "${common[@]}" --step-ms 20 \
                --log "$TMPDIR/killed-$kind.log" "${args[@]}" >>"$TMPDIR/killed-$kind.out" 2>&1 &
        runner=$!
        for at in $((steps / 4)) $((steps / 2)); do
                wait_for 60 reached "$TMPDIR/killed-$kind.log" "$at" || fail "killed-$kind: step $at is not reached"
                pid=$(trainer "killed-$kind")
                [ -n "$pid" ] && kill -KILL "$pid" || fail "killed-$kind: no trainer to kill"
        done
        wait "$runner" || { tail -n 20 "$TMPDIR/killed-$kind.out"; fail "killed-$kind: cairn run failed"; }
        same "$TMPDIR/whole-$kind.log" "$TMPDIR/killed-$kind.log"
        # Every tensor in its type, steps and masters too; the log shows the losses alone.
        "$cairn" diff "whole-$kind@$steps" "killed-$kind@$steps" >"$TMPDIR/diff" 2>&1 || true
        grep -Eq '^tensors +0 differ' "$TMPDIR/diff" || fail "killed-$kind: $(grep -E '^tensors|cairn' "$TMPDIR/diff" | head -n 1)"
        figure "restarts_$kind" "$(grep -Ec 'restart [0-9]+ from' "$TMPDIR/killed-$kind.out" || true)"
        figure "post_mortem_$kind" "$(grep -c 'taken after its death' "$TMPDIR/killed-$kind.out" || true)"
done

# From one device to the other.
for kind in "${crossing[@]}"; do
        args=("${small[@]}" --dtype "$kind" --threads 4)
        for device in cpu cuda; do
                run "$device-$kind" --every 10000steps -- "${args[@]}" --device "$device"
        done
        for way in cpu-cuda cuda-cpu; do
                name=$way-$kind
                run "$name" --every 10000steps -- "${args[@]}" --device "${way%-*}" --stop-at "$half"
                run "$name" --mode resume --every 10000steps -- "${args[@]}" --device "${way#*-}"
                near "$TMPDIR/${way%-*}-$kind.log" "$TMPDIR/$name.log" "$([ "$kind" = fp32 ] && echo 1e-4 || echo 1e-2)"
                figure "loss_${way/-/_to_}_$kind" "$(<"$TMPDIR/near")"
        done
done
