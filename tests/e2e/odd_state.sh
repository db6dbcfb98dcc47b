#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Tensors, names, counters and host values as odd as the format allows: after a SIGKILL and a restore
# into a new process every byte is compared with what that step held (B07 B08 B09 B32 B38 B64; RESUME 15,
# 16, 19, 22, 24).
. "$(dirname "$0")/lib.sh"
zoo=$helpers/zoo
[ -x "$zoo" ] || skip "$zoo is not built"

# Two lives: the first one saves step 3 and dies there, the second restores, compares, trains to 6.
two_lives() { # case
        start "$1" --every 10m -- "$zoo" "$1"
        finish 60
        expect_code 0
        says "$output" 'saved step 3'
        says "$output" 'restart 1 from step 3'
        try 0 '✓' "$cairn" verify "$1"
}
two_lives shapes
[ "$("$cairn" inspect shapes@3 --tensors --json | json 'tensors.#')" -eq 126 ] || die "not 18 types x 7"
"$cairn" inspect shapes@3 --tensors --json | json 'tensors.*.name&shape' >"$work/shapes"
grep -qx 'f32.1 \[\]' "$work/shapes" || die "[] did not stay []"
grep -qx 'bf16.3 \[1\]' "$work/shapes" || die "[1] did not stay [1]"
grep -qx 'f64.2 \[4,0,3\]' "$work/shapes" || die "[4,0,3] did not stay [4,0,3]"
ok "B09 RESUME-15 RESUME-22 every type, [0] [] [4,0,3] [1] [1,1], first, in the middle and last"
two_lives empty
ok "B09 a checkpoint of nothing but empty tensors"
two_lives names
ok "B64 names of 1 to 65536 bytes"
start names-long --every 10m --max-restarts 0 -- "$zoo" names-long
finish 60
expect_code 64
says "$output" 'register: .*65536'
ok "B64 a longer one is refused at registration: 64"
two_lives sizes
ok "B38 odd sizes, exact bytes"
two_lives counters
says "$output" 'step 3 counter 3 truth 16777219 fp32 16777220'
says "$output" 'step 6 counter 0 truth 263 fp32 263'
says "$output" 'step 6 counter 4 truth 16777223 fp32 16777224'
ok "B08 RESUME-16 steps beyond 2^24 keep counting, 64-bit counters are exact"
two_lives host
ok "B32 host values are those of the cut although they were scribbled over at once"
two_lives permuted
ok "RESUME-24 registered in the opposite order: the same state"
two_lives narrow
"$cairn" inspect narrow@3 --tensors --json |
        json 'tensors.*.name&dtype&stored_dtype' >"$work/narrow"
for line in 'fits.moment1 f32 f16' 'over.moment1 f32 f32' 'under.moment1 f32 f32' 'fits.moment2 f32 f32'; do
        grep -qx "$line" "$work/narrow" || die "not $line: $(cat "$work/narrow")"
done
"$cairn" inspect narrow@3 --tensors --json | json 'tensors.*.name&encoding' >"$work/narrow"
grep -q '^over.moment1 .*"fell_back": *true.*"overflows": *1' "$work/narrow" || die "$(cat "$work/narrow")"
grep -q '^under.moment1 .*"fell_back": *true.*"underflows": *1' "$work/narrow" || die "$(cat "$work/narrow")"
try 0 '^over.moment1 .*not as f16: 1 overflows, 0 underflows' "$cairn" inspect narrow@3 --tensors
start moment2-narrow --every 10m --max-restarts 0 -- "$zoo" moment2-narrow
finish 60
expect_code 64
says "$output" 'fits.moment2'
ok "RESUME-20 RESUME-21 moments in FP16 only where asked, where they fit, and never the second"
start mismatch --every 10m -- "$zoo" mismatch
finish 60
expect_code 78
for wrong in 'first\.weight' 'second\.weight' 'third\.weight.*f16|third\.weight.*f32'; do
        says "$output" "$wrong"
done
says "$output" 'nothing was touched'
[ "$(steps_of mismatch)" = 3 ] || die "the checkpoint is gone"
ok "RESUME-19 RESUME-24 all mismatches listed, nothing touched: 78"

# Weights in bf16 with fp32 masters and moments: type and bytes of all tensors, and the next updates.
args=(--dtype bf16 --steps 40 --ema 0.9 --dropout 0.1)
run bf16-whole --every 10m -- "${tiny[@]}" "${args[@]}"
run bf16-parts --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 20
run bf16-parts --mode resume --every 10m -- "${tiny[@]}" "${args[@]}"
same_state bf16-whole@40 bf16-parts@40
tensors_of bf16-whole@40 >"$work/whole"
grep -q ' parameter bf16 bf16 ' "$work/whole" || die "no bf16 parameters"
grep -q ' moment2 f32 f32 ' "$work/whole" || die "no fp32 moments"
same_log "$work/bf16-whole.log" "$work/bf16-parts.log"
ok "B07 RESUME-15 bf16 weights, fp32 masters, moments and steps: types and CRCs of all tensors equal"
