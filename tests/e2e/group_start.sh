#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 180 s
#
# The two starts that one flag once confused, on two ranks each and in one test: the weights of an unfinished
# run for another corpus with another vocabulary, and the same run killed and resumed. Neither looks at the
# data to find out which it is.
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
two=(--nproc-per-node 2)
value() { # checkpoint, name
        values_of "$1" | sed -n "s/.*\"$2\"://p" | tr -d '"{}' | head -n 1
}

# Corpus A has the ten digits and a line's end, corpus B letters: 11 and 18 characters.
tr '0-9' 'k-t' <"$work/text" | sed 's/$/ abcdef/' >"$work/letters"
args=("${tiny[@]}" --vocab char --dropout 0.1 --ema 0.9 --warmup 10)
run a "${two[@]}" --every 10steps -- "${args[@]}" --steps 60 --stop-at 20

# b: weights alone, what does not fit is listed with both shapes, everything else begins anew.
other=("${args[@]/"$work/text"/"$work/letters"}" --steps 40)
run b "${two[@]}" --init-from a@20 --every 50steps -- "${other[@]}"
says "$work/b.out" '^start init-from, step 0, .* 1 skipped'
says "$work/b.out" '"skipped":\["tensor wte.weight: the checkpoint has shape \[11, 16\], the trainer \[18, 16\]"\]'
says "$work/b.out" '^2 ranks by gloo .*; weights equal, digest [0-9a-f]{16}$'
[ "$("$helpers/trainlog" last "$work/b.log")" -eq 40 ] || die "it did not train 40 steps from step 0"
grep -q '^{"step":1,.*"lr":0.0001,"samples":4,' "$work/b.log" || die "schedule or order did not begin anew"
run fresh "${two[@]}" --every 50steps -- "${other[@]}"
! cmp -s "$work/b.log" "$work/fresh.log" || die "no weight was taken"
[ "$(value b@40 ema.updates)" = 40 ] && [ "$(value b@40 data.samples)" = 160 ] ||
        die "counters did not begin at 0: $(values_of b@40)"
says "$work/a.out" 'can be resumed'
ok "GROUP-b RESUME-2 --init-from an unfinished run, other vocabulary, 2 ranks: step 0, one tensor skipped, both shapes named, ranks equal"

# None that fits is a mistake, not a start from scratch: both ranks refuse alike.
start none "${two[@]}" --init-from a@20 -- "${other[@]}" --width 32
finish 100
expect_code 78
says "$output" 'none of its weights fits the trainer.s by name, shape and dtype, nothing was touched'
says "$output" '^tensor wte.weight: the checkpoint has shape \[11, 16\], the trainer \[18, 32\]'
never_says "$output" '^start '
ok "GROUP-b --init-from of a model that shares no weight, 2 ranks: 78, every tensor with both shapes"

# c: the same, but killed with all of its processes and resumed: the run that was not.
stands_still 24
start c "${two[@]}" --init-from a@20 --every 10steps -- "${still[@]}" "${other[@]}"
wait_step "$work/c.log" 23 100
wait_for 100 has_saved c 10
kill_all
: >"$work/c.out"
run c "${two[@]}" --mode auto --init-from a@20 --every 10steps -- "${other[@]}"
says "$work/c.out" '^start resume, step [12][0-9], .* 0 skipped.*bit-exact'
same_log "$work/b.log" "$work/c.log"
same_state b@40 c@40
run a "${two[@]}" --mode resume --every 10steps -- "${args[@]}" --steps 60
run whole "${two[@]}" --every 10steps -- "${args[@]}" --steps 60
same_log "$work/whole.log" "$work/a.log"
ok "GROUP-c RESUME-3 the same run killed and resumed, 2 ranks: losses, rates and order of the undisturbed run"

# The other way round is refused: resume does not turn into a start with other data, nor the reverse.
start a2 "${two[@]}" --every 10steps -- "${args[@]}" --steps 60 --stop-at 20
finish 100
start a2 "${two[@]}" --mode resume -- "${other[@]}" --steps 60
finish 100
expect_code 78
says "$output" 'data.vocabulary: 11 in the checkpoint, 18 now.*--init-from'
ok "resume on another corpus: 78 on both ranks, --init-from is named"
