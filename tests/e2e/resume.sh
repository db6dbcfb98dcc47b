#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 600 s
#
# What resuming must get right, row by row of the requirements' table, as far as one rank on a CPU shows
# it; the rows of refusals, kills and odd tensors are in the other scripts (README.md lists them).
. "$(dirname "$0")/lib.sh"

value() { # checkpoint, name
        values_of "$1" | sed -n "s/.*\"$2\"://p" | tr -d '"{}'
}

# Row 1: weights only; step, moments, schedule, EMA counter and data order begin anew.
args=(--steps 40 --ema 0.9 --dropout 0.1 --warmup 10)
run base --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 20
start warm --init-from base@20 --every 10m -- "${tiny[@]}" "${args[@]}" --step-ms 1 \
        --stall-step 1 --stall-ms 10000
wait_for 60 grep -q '^start ' "$work/warm.out"
try 0 committed "$cairn" snapshot warm --wait --json
[ "$(json step <<<"$said")" -eq 0 ] || die "init-from: the first cut is not step 0: $said"
[ "$(value warm@0 data.samples)" = 0 ] && [ "$(value warm@0 ema.updates)" = 0 ] ||
        die "init-from: counters are not 0: $(values_of warm@0)"
crc() { # checkpoint, tensor: its checksum
        "$cairn" inspect "$1" --tensors --json | json 'tensors.*.name&extents' |
                sed -n "s/^$2 .*\"crc32c\":\([0-9]*\).*/\1/p"
}
tensor=$("$cairn" inspect base@20 --tensors --json | json 'tensors.*.role&name' |
        sed -n 's/^parameter //p' | head -n 1)
[ "$(crc warm@0 "$tensor")" = "$(crc base@20 "$tensor")" ] || die "init-from: $tensor was not taken"
"$cairn" inspect warm@0 --tensors --json | json 'tensors.*.name&true_step' | grep -E '\.step ' |
        grep -qv ' 0$' && die "init-from: an optimizer step is not 0"
[ "$(crc warm@0 "$tensor.moment1")" != "$(crc base@20 "$tensor.moment1")" ] || die "init-from: moments were taken"
finish 60
expect_code 0
[ "$("$helpers/trainlog" last "$work/warm.log")" -eq 40 ] || die "init-from did not train all steps"
ok "RESUME-1 init-from: step 0, moments, EMA counter and samples 0, weights taken"

start none --init-from base@20 -- "${tiny[@]}" "${args[@]}" --width 32
finish 60
expect_code 78
says "$output" 'none of its weights fits the trainer.s by name, shape and dtype, nothing was touched'
says "$output" '^tensor .*: the checkpoint has shape \[.*16.*\], the trainer \[.*32.*\]'
never_says "$output" '^start '
ok "RESUME-1 init-from where no weight fits: 78, every tensor with both shapes"

# Rows 23, 25, 27, 28, 32: cut at 0, in mid warm-up, at its end, in the middle and at the last step but
# one; each resumed run's lines equal the uninterrupted run's: rates, losses and sample counts.
for decay in linear cosine; do
        args=(--steps 40 --warmup 10 --decay $decay --ema 0.95 --dropout 0.1 --accumulate 4 --batch 1
                --eval-every 10 --eval-batches 1)
        run "whole-$decay" --every 10m -- "${tiny[@]}" "${args[@]}"
        for cut in 5 10 20 39; do
                run="$decay-$cut"
                run "$run" --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at $cut
                run "$run" --mode resume --every 10m -- "${tiny[@]}" "${args[@]}"
                same_log "$work/whole-$decay.log" "$work/$run.log"
        done
        start "$decay-0" --every 10m -- "${tiny[@]}" "${args[@]}" --stall-step 1 --stall-ms 200000
        wait_for 60 grep -q '^start ' "$work/$decay-0.out"
        try 0 '"step": 0' "$cairn" snapshot "$decay-0" --wait --json
        kill_all
        run "$decay-0" --mode resume --every 10m -- "${tiny[@]}" "${args[@]}"
        same_log "$work/whole-$decay.log" "$work/$decay-0.log"
        for cut in 0 5 10 20 39; do
                same_state "whole-$decay@40" "$decay-$cut@40"
        done
        ok "RESUME-25 RESUME-27 RESUME-28 RESUME-32 $decay: cut at 0, 5, 10, 20 and 39"
done

# Row 29: an overflow in the very step that is saved; row 31: killed between micro-batches.
args=(--steps 60 --accumulate 4 --batch 1 --loss-scale dynamic --loss-scale-growth 12 --overflow-step 31)
run scaler --every 10m -- "${tiny[@]}" "${args[@]}"
start scaled --every 10m -- "${tiny[@]}" "${args[@]}" --stall-step 32 --stall-ms 200000
wait_step "$work/scaled.log" 31 60
try 0 '"step": 31' "$cairn" snapshot scaled --wait --json
[ "$(value scaled@31 updates.skipped)" = 1 ] || die "the overflow was not skipped: $(values_of scaled@31)"
[ "$(value scaled@31 loss_scale.good_steps)" = 0 ] || die "the growth counter was not reset"
kill_all
run scaled --mode resume --every 10m -- "${tiny[@]}" "${args[@]}"
same_log "$work/scaler.log" "$work/scaled.log"
same_state scaler@60 scaled@60
ok "RESUME-29 overflow just before the kill: scale $(value scaled@60 loss_scale.value), same as uninterrupted"

run phases --every 10m -- "${tiny[@]}" "${args[@]}"
start phase --every 3steps --max-restarts 100 -- "${tiny[@]}" "${args[@]}" --step-ms 100
has_checkpoint() { # run
        [ -n "$(steps_of "$1")" ]
}
wait_for 60 has_checkpoint phase
for step in 9 20 31 42; do
        pid_of trainer # before: when it is there it has not long to live
        wait_step "$work/phase.log" $step 60
        kill -KILL "$pid"
        wait_for 60 gone "$pid"
done
finish 60
expect_code 0
same_log "$work/phases.log" "$work/phase.log"
[ "$(grep -c 'restart [0-9]* from step' "$output")" -eq 4 ] || die "it did not resume four times"
same_state phases@60 phase@60
[ "$(value phase@60 accumulation.phase)" = 0 ] || die "a cut inside an accumulation"
ok "RESUME-31 killed inside accumulations: the same optimizer steps"

# Rows 9, 10, 13: batch and save period may change, logged old -> new; the position is in samples.
run change --every 10m -- "${tiny[@]}" --steps 40 --batch 4 --accumulate 1 --global-batch 4 --stop-at 20
: >"$work/change.out"
run change --mode resume --every 5steps -- "${tiny[@]}" --steps 40 --batch 2 --accumulate 2 --global-batch 4
says "$work/change.out" 'batch.*4.*2'
[ "$(value change@40 data.samples)" = 160 ] || die "samples: $(value change@40 data.samples), not 160"
ok "RESUME-9 RESUME-13 another micro-batch: logged, position kept"

# Row 30: the streams of dropout and data are keyed by state; already in every comparison above. Row 33:
args=(--steps 200 --eval-every 5 --patience 3 --lr 0 --min-lr 0)
run stops --every 10m -- "${tiny[@]}" "${args[@]}"
start stops-late --every 3steps --max-restarts 10 -- "${tiny[@]}" "${args[@]}" --step-ms 200
wait_for 60 has_checkpoint stops-late
pid_of trainer
wait_step "$work/stops-late.log" 12 60
kill -KILL "$pid"
finish 60
expect_code 0
same_log "$work/stops.log" "$work/stops-late.log"
says "$output" 'restart 1 from step'
[ "$("$helpers/trainlog" last "$work/stops.log")" -lt 200 ] || die "patience did not end the run"
ok "RESUME-33 early stop at step $("$helpers/trainlog" last "$work/stops.log"), killed or not"

# Row 35: killed when a step's line is written and its state is not published yet.
args=(--steps 60 --seed 5 --dropout 0.1 --eval-every 10 --eval-batches 1)
run rows --every 10m -- "${tiny[@]}" "${args[@]}"
cat >"$work/stalling" <<EOS
#!/bin/sh
[ "\$CAIRN_RESTART_COUNT" != 0 ] || set -- "\$@" --update-stall-step 40 --update-stall-ms 200000
exec "$train" "\$@"
EOS
chmod 755 "$work/stalling"
start row --every 7steps --max-restarts 10 -- "$work/stalling" "${tiny[@]:1}" "${args[@]}" --log "$work/row.log"
wait_step "$work/row.log" 40 60
[ "$("$cairn" status row --json | json runs.0.ranks.0.step)" = 39 ] || die "step 40 is published already"
pid_of trainer
kill -KILL "$pid"
finish 60
expect_code 0
says "$output" 'restart 1 from (the beginning|step [0-9]+); finished steps lost: [0-9]+'
same_log "$work/rows.log" "$work/row.log"
[ "$(grep -c '"step":40,"loss"' "$work/row.log")" -eq 1 ] || die "step 40 has not exactly one line"
ok "RESUME-35 killed between a step's line and its publication: no line is missing, none is there twice"

# Row 36: phases follow from the position: cut one step before, at and after warm-up's end, and gone on with
# another micro-batch, as after an out-of-memory: rates are those of the run that was never cut.
rates() { # log
        sed -n 's/.*"step":\([0-9]*\),.*"lr":\([^,]*\),.*/\1 \2/p' "$1"
}
args=(--steps 40 --warmup 10 --decay linear --global-batch 4)
run phased --every 10m -- "${tiny[@]}" "${args[@]}" --batch 4
for cut in 9 10 11; do
        run "phased-$cut" --every 10m -- "${tiny[@]}" "${args[@]}" --batch 4 --stop-at $cut
        run "phased-$cut" --mode resume --every 10m -- "${tiny[@]}" "${args[@]}" --batch 1 --accumulate 4
        cmp -s <(rates "$work/phased.log") <(rates "$work/phased-$cut.log") ||
                die "rates differ: $(diff <(rates "$work/phased.log") <(rates "$work/phased-$cut.log") | head -n 4)"
        [ "$(rates "$work/phased-$cut.log" | wc -l)" -eq 40 ] || die "not 40 steps"
done
ok "RESUME-36 cut around the end of warm-up and gone on with another micro-batch: the same phases"

# Row 43: a thousand damages of one checkpoint.
SEED_FLIPS=$((SEED % 1000000))
"$helpers/flip" "$CAIRN_STORE" base 000000000020-g0001 1000 "$SEED_FLIPS" >"$work/flip.out" ||
        die "damages went unnoticed, seed $SEED_FLIPS"
ok "RESUME-43 $(tail -n 1 "$work/flip.out"), seed $SEED_FLIPS"

# A damaged newest one: the next older valid one, said so, never fresh.
run falls --every 10steps -- "${tiny[@]}" --steps 40 --stop-at 30 --step-ms 50
older=$(cd "$CAIRN_STORE/falls" && printf '%s\n' 0*-g0001 | tail -n 2 | head -n 1) # a busy machine may have skipped step 20
[ "$older" != 000000000030-g0001 ] || die "there is one checkpoint only"
printf 'x' | dd of="$CAIRN_STORE/falls/000000000030-g0001/INDEX" bs=1 seek=100 conv=notrunc status=none
[ "$(newest_of falls)" = "$older" ] || die "cairn list takes a damaged checkpoint for the newest"
try 0 '^000000000030-g0001 .*damaged' "$cairn" list falls
: >"$work/falls.out"
run falls --mode resume -- "${tiny[@]}" --steps 40
says "$work/falls.out" "000000000030-g0001 is damaged.*fell back to $older"
ok "RESUME-42 falls back to the next older valid checkpoint and says so"

# Row 44: a state that is not finite is saved and flagged, and never chosen by itself.
start nan --every 10m --max-restarts 0 -- "$helpers/zoo" nan
finish 60
try 0 '^000000000003-g0001 .*flagged' "$cairn" list nan
try 65 'flagged.*--from 3' "$cairn" run --run nan --mode auto -- "$helpers/zoo" nan
ok "RESUME-44 a checkpoint with NaN is flagged; alone it is refused with 65, naming --from"
start nans --every 2steps --max-restarts 0 -- "$helpers/zoo" nan --step-ms 100
finish 60
[ "$(json step <"$CAIRN_STORE/nans/exit.json")" = 2 ] || die "exit.json: $(cat "$CAIRN_STORE/nans/exit.json")"
: >"$work/nans.out"
start nans --mode auto --every 10m -- "$helpers/zoo" nan --steps 2
finish 60
expect_code 0
says "$work/nans.out" '000000000003-g0001 is flagged.*passed over'
says "$work/nans.out" 'resumes step 2 '
ok "RESUME-44 the newest one that is not flagged is resumed"

# Such a one is no progress: it is not said to be where the restart begins.
start nan-dies --every 2steps --max-restarts 1 -- "$helpers/zoo" nan --step-ms 100 --steps 4
finish 60
says "$output" 'restart 1 from step 2; step 3 is kept, but flagged'
# shellcheck disable=SC2016
start nan-only --every 10m --max-restarts 0 -- sh -c '"$1" nan; true' sh "$helpers/zoo"
finish 60
expect_code 0
try 0 'flagged' "$cairn" list nan-only
never_says "$output" 'no checkpoint was committed'
ok "RESUME-44 a restart says that it begins before the flagged checkpoint, which is not taken for none"

# Row 45: a finished run can be extended on purpose, with the schedule that the operator chooses.
run extended --every 10m -- "${tiny[@]}" --steps 30
try 66 'finished' "$cairn" run --run extended --mode resume -- "${tiny[@]}" --steps 40
# Copied under another name it is the other run's still, its end included.
cp -a "$CAIRN_STORE/extended" "$CAIRN_STORE/copied"
for mode in auto resume; do
        try 78 'belong to another run' "$cairn" run --run copied --mode $mode -- "${tiny[@]}" --steps 30
done
run extended --from 30 --override config.steps=40 --every 10m -- "${tiny[@]}" --steps 40
[ "$("$helpers/trainlog" last "$work/extended.log")" -eq 40 ] || die "the run was not extended"
"$cairn" verify extended >/dev/null || die "extending damaged a checkpoint"
ok "RESUME-45 a finished run goes on to step 40 with --from 30 --override config.steps=40"

# A run that is complete, and none of whose snapshots was committed: that is said, by whoever speaks of it.
export CAIRN_FAULT=data-write:0:error:28
start lost --every 10steps -- "$helpers/lockstep" "$work/barrier" "$work/lost.steps" --steps 30
finish 60
unset CAIRN_FAULT
expect_code 0
says "$output" 'is finished, but no checkpoint was committed'
[ "$(json 'code&reason' <"$CAIRN_STORE/lost/exit.json")" = "0 completed; no checkpoint was committed" ] ||
        die "$(cat "$CAIRN_STORE/lost/exit.json")"
for mode in auto:0 resume:66 fresh:73; do
        try "${mode#*:}" 'is finished \(completed; no checkpoint was committed' \
                "$cairn" run --run lost --mode "${mode%:*}" -- true
done
ok "a finished run without a checkpoint: exit line, exit.json and every later start say so"

# Row 49: a restore needs no second copy of the state in the trainer.
args=(--layers 4 --width 256 --heads 4 --context 16 --batch 1 --steps 4)
big=("$train" --data "$work/text" --quiet "${args[@]}")
peak() { # file with the lines of /proc/PID/status
        sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "$1"
}
start big --every 10m -- "${big[@]}" --stall-step 3 --stall-ms 5000 --stop-at 3
pid_of trainer
wait_step "$work/big.log" 2 60
cat "/proc/$pid/status" >"$work/peak-fresh"
finish 60
expect_code 0
: >"$output"
start big --mode resume --every 10m -- "${big[@]}" --stall-step 4 --stall-ms 5000
wait_for 60 grep -q 'resumes step 3' "$output"
pid_of trainer
wait_for 60 grep -q '^start ' "$output"
cat "/proc/$pid/status" >"$work/peak-resumed"
finish 60
expect_code 0
state=$(("$("$cairn" inspect big --json | json tensor_bytes)" / 1024))
fresh=$(peak "$work/peak-fresh") resumed=$(peak "$work/peak-resumed")
# The copy into place reads staging, which is mapped meanwhile: pages of the agent's, not of the trainer's.
[ "$resumed" -le $((fresh + state + 16384)) ] ||
        die "restoring $state KiB took the trainer to $resumed KiB, a fresh start to $fresh"
ok "RESUME-49 peak of a fresh trainer $fresh KiB, of a restored one $resumed KiB, state $state KiB"

# A saver is killed while the files for its restore are being opened: its successor gets them.
run reader --every 10m -- "${tiny[@]}" --steps 20 --stop-at 10
run reader --mode resume --every 10m -- "${tiny[@]}" --steps 20
: >"$output"
export CAIRN_FAULT=restore-open:1:delay:6000 CAIRN_FAULT_ONCE=$work/opening
start reader --mode resume --from 10 --every 10steps -- "${tiny[@]}" --steps 20
unset CAIRN_FAULT CAIRN_FAULT_ONCE
wait_for 60 test -e "$work/opening"
pid_of saver
kill -KILL "$pid"
finish 60
expect_code 0
grep -q '^start resume, step 10' "$output" || die "it did not resume step 10"
ok "a saver that dies while files are opened for its restore is replaced, and the restore goes on"
