#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# One run on 1, 2, 4 and again 1 ranks, with and without a shared optimizer state: the samples come in the
# same order, rates and counts are those of the run that never changed, and what is stored is the same
# state however it is cut; little more is read than is needed.
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"

schedule_of() { # log: all but the losses and the clock
        sed -n 's/.*"step":\([0-9]*\),.*"lr":\([^,]*\),"samples":\([0-9]*\),.*/\1 \2 \3/p' "$1"
}
order_of() { # sample log: positions and numbers, each once
        sort -n -u "$1".*
}
gen_of() { # run: of its newest checkpoint
        newest_of "$1"
}

base=("${tiny[@]}" --steps 48 --global-batch 8 --batch 2 --ema 0.9 --dropout 0.1 --dtype bf16 --warmup 20)
run plain --every 10m -- "${base[@]}" --sample-log "$work/plain.samples"
[ "$(order_of "$work/plain.samples" | wc -l)" -eq 384 ] || die "48 steps of 8 samples are not 384"
for zero in 0 1; do
        e=elastic-$zero step=0 mode=fresh
        for world in 1 2 4 1; do
                args=("${base[@]}" --zero $zero --sample-log "$work/$e.samples")
                if [ $step -gt 0 ]; then # the same cut, taken again by the new ranks
                        before=$(gen_of $e)
                        run $e --nproc-per-node $world --mode resume -- "${args[@]}" --stop-at $step
                        after=$(gen_of $e)
                        [ "$before" != "$after" ] || die "no checkpoint by $world ranks"
                        "$cairn" diff --tensors "$e/$before" "$e/$after" >"$work/diff.out" ||
                                die "step $step on $world ranks differs: $(head -n 5 "$work/diff.out")"
                fi
                step=$((step + 12))
                run $e --nproc-per-node $world --mode $mode -- "${args[@]}" --stop-at $step
                mode=resume
        done
        "$cairn" verify $e >/dev/null || die "a checkpoint is damaged"
        cmp -s <(order_of "$work/plain.samples") <(order_of "$work/$e.samples") ||
                die "--zero $zero: the order of the samples differs"
        cmp -s <(schedule_of "$work/plain.log") <(schedule_of "$work/$e.log") ||
                die "--zero $zero: rates or counts differ"
        [ "$(schedule_of "$work/$e.log" | wc -l)" -eq 48 ] || die "not 48 steps"
        ok "GROUP-d RESUME-12 1 -> 2 -> 4 -> 1 ranks, --zero $zero: 384 samples in order, rates exact, state equal after each change"
done

# Sharing may begin and end on resume, too.
run mixed --nproc-per-node 2 -- "${base[@]}" --stop-at 24 --zero 1
run mixed --nproc-per-node 2 --mode resume -- "${base[@]}" --stop-at 36
run mixed --nproc-per-node 2 --mode resume -- "${base[@]}" --zero 1
run steady --nproc-per-node 2 -- "${base[@]}"
same_log "$work/steady.log" "$work/mixed.log"
says "$work/mixed.out" 'free.zero 1 -> 0'
ok "--zero changed on resume: logged, not a bit differs"

# The global batch is the run's. One that the ranks cannot make is refused, and nothing changes.
run batch -- "${tiny[@]}" --steps 40 --batch 2 --accumulate 3 --stop-at 10
: >"$work/batch.out"
run batch --nproc-per-node 3 --mode resume -- "${tiny[@]}" --steps 40 --batch 2 --accumulate 3 --stop-at 20
says "$work/batch.out" 'numerics.accumulate 3 -> 1'
says "$work/batch.out" 'world 1 -> 3'
[ "$(schedule_of "$work/batch.log" | tail -n 1 | cut -d' ' -f3)" -eq 120 ] || die "20 steps of 6 samples are not 120"
names_of() {
        "$cairn" list "$1" --json | json 'checkpoints.*.checkpoint'
}
before=$(names_of batch)
start batch --nproc-per-node 4 --mode resume -- "${tiny[@]}" --steps 40 --batch 2
finish 100
expect_code 64
says "$output" '6 samples cannot be made of micro-batches of 2 on 4 ranks'
[ "$(names_of batch)" = "$before" ] || die "a refused start changed checkpoints"
ok "RESUME-13 accumulation follows from the ranks; a global batch that they cannot make is refused"

# Place, batch and context at once.
three=("${tiny[@]}" --steps 40 --positions 16 --global-batch 8)
run three -- "${three[@]}" --batch 4 --stop-at 10
: >"$work/three.out"
run three --nproc-per-node 2 --mode resume -- "${three[@]}" --batch 2 --context 8 --threads 2 --stop-at 20
for change in 'world 1 -> 2' 'numerics.batch 4 -> 2' 'numerics.context 16 -> 8' 'numerics.threads 1 -> 2'; do
        says "$work/three.out" "$change"
done
[ "$(schedule_of "$work/three.log" | tail -n 1 | cut -d' ' -f3)" -eq 160 ] || die "20 steps of 8 samples are not 160"
ok "RESUME-9 ranks, batch, context and threads change at once: each logged old -> new, the position is in samples"

# A state that is large beside what is read around its parts.
large=("$train" --data "$work/text" --layers 4 --heads 4 --width 384 --context 8 --batch 1 --global-batch 4
        --quiet --zero 1 --steps 10 --stop-at 1)
run large -- "${large[@]}"
for row in '2 1' '4 1' '4 0' '1 0'; do
        read -r world zero <<<"$row"
        : >"$work/large.out"
        run large --nproc-per-node $world --mode resume -- "${large[@]}" --zero $zero
        read -r needed got <<<"$(sed -n 's/.* needed \([0-9]*\) bytes .* read \([0-9]*\)$/\1 \2/p' "$work/large.out")"
        [ "${needed:-0}" -gt 0 ] && [ $((got * 100)) -le $((needed * 105)) ] ||
                die "$world ranks, --zero $zero: needed ${needed:-nothing} bytes and read ${got:-nothing}"
        echo "   $world ranks, --zero $zero: needed $needed, read $got"
done
ok "GROUP-d bytes read are at most 1.05 of what is needed"
