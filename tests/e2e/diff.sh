#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# diff: a resumed run's checkpoint equals the uninterrupted one's; other steps, shapes and dtypes are told
# apart with numbers; the exit status says it.
. "$(dirname "$0")/lib.sh"
run whole --every 10m -- "${tiny[@]}" --steps 20 --step-ms 2
run parts --every 10m -- "${tiny[@]}" --steps 20 --stop-at 10
run parts --mode resume --every 10m -- "${tiny[@]}" --steps 20
try 0 '^tensors +0 differ, [0-9]+ are equal' "$cairn" diff whole parts@20 --tensors
[ "$("$cairn" diff whole whole --json | json 'equal')" = true ] || die "a checkpoint differs from itself"
ok "a resumed run's tensors equal the uninterrupted run's"

try 1 'moment2 +moment2|tensors +[1-9][0-9]* differ' "$cairn" diff parts@10 parts@20
grep -Eq 'elements differ, by up to [0-9]' <<<"$said" || die "no numbers: $said"
grep -Eq 'data\.samples +20 \| 40' <<<"$said" || die "the samples seen are not compared: $said"
"$cairn" diff parts@10 parts@20 --json >"$work/json" && die "different, but exit status 0"
[ "$(json equal <"$work/json")" = false ] || die "--json: equal"
[ "$(json 'tensors.#' <"$work/json")" -gt 0 ] || die "--json: tensors"
ok "steps 10 and 20: state and tensors with numbers, text and JSON"

run wide --every 10m -- "$train" --data "$work/text" --layers 1 --heads 2 --width 32 --context 16 --batch 2 \
        --quiet --steps 2
try 1 '\[[0-9]+, 16\] \| .*\[[0-9]+, 32\]' "$cairn" diff whole wide
run averaged --every 10m -- "${tiny[@]}" --steps 2 --ema 0.9
try 1 'only in b: ema' "$cairn" diff whole averaged
ok "other shapes, and tensors that one of them lacks"

# Bytes that are not what was written are no difference.
cp -a "$CAIRN_STORE/parts" "$CAIRN_STORE/spoilt"
name=$("$cairn" inspect parts@10 --tensors --json | json 'tensors.*.role&name' | sed -n 's/^moment2 //p' | head -n 1)
at=$("$cairn" inspect parts@10 --tensors --json | json 'tensors.*.name&extents' | grep -F "$name " |
        sed -n 's/.*"offset":\([0-9]*\).*/\1/p')
printf '\377' | dd of="$(echo "$CAIRN_STORE"/spoilt/*10-g0001/rank-00000.data)" bs=1 seek="$at" conv=notrunc 2>/dev/null
for pair in 'spoilt@10 parts@20' 'parts@20 spoilt@10'; do
        # shellcheck disable=SC2086
        try 65 "000000000010-g0001/rank-00000.data.*tensor $name is damaged" "$cairn" diff $pair
done
ok "a damaged checkpoint is named as damaged, not as different"

try 66 'no such checkpoint' "$cairn" diff whole@5 whole
try 64 'which two' "$cairn" diff whole
ok "refusals"
