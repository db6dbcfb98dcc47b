#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# Which checkpoints stay: numbers are compared as numbers (B52); there is always a whole one, wherever a
# save is cut off (B01, B54); a store that is moved or copied is the same store (B56); a neighbour's newer
# checkpoint is nobody's (RESUME-8).
. "$(dirname "$0")/lib.sh"
kept() {
        steps_of "$1" | tr '\n' ' '
}
# Wide periods, so that a slow disk does not make a scheduled one be skipped.
run numbers --every 3steps --keep-last 2 -- "${tiny[@]}" --steps 12 --step-ms 500
[ "$(kept numbers)" = "9 12 " ] || die "kept $(kept numbers), not 9 12"
run hundred --every 33steps --keep-last 2 -- "${tiny[@]}" --steps 132 --step-ms 45
[ "$(kept hundred)" = "99 132 " ] || die "kept $(kept hundred), not 99 132"
[ "$(newest_of hundred)" = 000000000132-g0001 ] || die "the newest is $(newest_of hundred)"
ok "B52 9 and 12, 99 and 132: the numerically highest stay, and the highest is the newest"

# One to keep; saver and store process die at each point of a save in turn, in its sixth passage.
has_checkpoint() { # run
        [ -n "$(steps_of "$1")" ]
}
points=(data-write data-sync manifest-write manifest-rename attempt-open commit-index commit-record
        commit-rename commit-parent-sync prune-rename)
for point in "${points[@]}"; do
        run="cut-$point"
        CAIRN_FAULT=$point:6:crash start "$run" --every 5steps --keep-last 1 -- \
                "${tiny[@]}" --steps 2000 --step-ms 3
        wait_step "$work/$run.log" 70 60
        wait_for 60 has_checkpoint "$run"
        kill_all
        newest=$(newest_of "$run")
        [ -n "$newest" ] || die "$point: no whole checkpoint: $("$cairn" list "$run")"
        step=$(newest_step_of "$run")
        try 0 '✓' "$cairn" verify "$run" # all that are committed, and there is one
        : >"$output"
        start "$run" --mode resume --every 5steps --keep-last 1 -- "${tiny[@]}" --steps 2000 --step-ms 3
        wait_for 60 grep -q "resumes step $step " "$output"
        wait_step "$work/$run.log" $((step + 7)) 60
        try 0 stopped "$cairn" stop "$run"
        finish 60
        never_says "$output" 'damaged'
done
ok "B01 B54 killed at ${#points[@]} points of a save with one to keep: always a whole one, resumed"

# Moved, and copied.
run traveller --every 10steps -- "${tiny[@]}" --steps 40 --stop-at 20
mv "$CAIRN_STORE" "$work/elsewhere"
run traveller --store "$work/elsewhere" --mode resume -- "${tiny[@]}" --steps 40 --stop-at 30
cp -a "$work/elsewhere" "$work/copy"
run traveller --store "$work/copy" --mode resume -- "${tiny[@]}" --steps 40
[ "$(CAIRN_STORE=$work/elsewhere newest_of traveller)" = 000000000030-g0002 ] || die "the original changed"
run reference --store "$work/copy" -- "${tiny[@]}" --steps 40
same_log "$work/reference.log" "$work/traveller.log"
ok "B56 a moved and a copied store go on"
export CAIRN_STORE=$work/copy

# Something that points outside: not followed.
run linked --every 10steps -- "${tiny[@]}" --steps 40 --step-ms 50 --stop-at 20
mv "$CAIRN_STORE/linked/000000000020-g0001" "$work/outside"
ln -s "$work/outside" "$CAIRN_STORE/linked/000000000020-g0001"
: >"$work/linked.out"
run linked --mode resume --every 10m -- "${tiny[@]}" --steps 40 --stop-at 30
says "$work/linked.out" 'resumes step 10 '
ok "B56 a link in place of the newest checkpoint is not followed; step 10 is resumed"

run sibling --every 10m -- "${tiny[@]}" --steps 400 --stop-at 300
: >"$work/mine.out"
run mine --every 10m -- "${tiny[@]}" --steps 40 --stop-at 15
mkdir "$CAIRN_STORE/mine-2"
cp -a "$CAIRN_STORE/sibling/." "$CAIRN_STORE/mine-2/"
: >"$work/mine.out"
run mine --mode resume -- "${tiny[@]}" --steps 40
says "$work/mine.out" 'resumes step 15 '
ok "RESUME-8 newer checkpoints of neighbours are ignored"
