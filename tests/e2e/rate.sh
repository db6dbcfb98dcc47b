#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 200 s
#
# The learning rate is a function of position and settings (RESUME 26): no rate is stored as state; settings
# that a checkpoint was made to tell otherwise, with every checksum right, are refused by name and change
# nothing; and with the operator's word the rates are the settings' again, bit for bit.
. "$(dirname "$0")/lib.sh"
[ -x "$helpers/forge" ] || skip "$helpers/forge is not built"
args=(--steps 40 --warmup 10 --decay cosine --lr 0.004 --seed 3)
run whole --every 10m -- "${tiny[@]}" "${args[@]}"

run forged --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 20
! values_of forged@20 | grep -Ei '"[^"]*(lr|rate)[^"]*":' || die "a rate is part of the state"
before=$(tensors_of forged@20)
for forgery in config.lr=0.4 config.min-lr=0.003 config.warmup=400 config.decay=constant config.steps=4000; do
        key=${forgery%%=*} value=${forgery#*=}
        cp -a "$CAIRN_STORE/forged" "$CAIRN_STORE/saved"
        "$helpers/forge" "$CAIRN_STORE" forged 000000000020-g0001 "$key" "$value" >"$work/forge.out" 2>&1 ||
                die "forge: $(cat "$work/forge.out")"
        try 0 '✓' "$cairn" verify forged
        [ "$("$cairn" inspect forged@20 --json | json descriptions | sed -n "s/.*\"$key\":\"\([^\"]*\)\".*/\1/p")" = "$value" ] ||
                die "$key was not forged"
        try 78 "$key" "$cairn" run --run forged --mode resume --max-restarts 3 -- "${tiny[@]}" "${args[@]}" --log "$work/refused.log"
        grep -Fq "$value" <<<"$said" || die "the stored value is not named: $said"
        ! grep -q '; restart ' <<<"$said" || die "it was tried again: $said"
        [ ! -s "$work/refused.log" ] || [ "$("$helpers/trainlog" last "$work/refused.log")" -eq 0 ] || die "it trained"
        [ "$(tensors_of forged@20)" = "$before" ] || die "tensors were changed"
        [ "$(newest_step_of forged)" = 20 ] || die "something was committed"
        rm -rf "$CAIRN_STORE/forged"
        mv "$CAIRN_STORE/saved" "$CAIRN_STORE/forged"
        ok "RESUME-26 $key stored as $value: verifies, and is refused by name"
done

# The operator says that his settings count: the rates are those of an undisturbed run.
rm -rf "$CAIRN_STORE/forged"
run forged --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 20
"$helpers/forge" "$CAIRN_STORE" forged 000000000020-g0001 config.lr 0.4 >/dev/null 2>&1
: >"$output"
run forged --mode resume --override config.lr=0.004 --every 10m -- "${tiny[@]}" "${args[@]}"
says "$output" 'config.lr.*0.4.*0.004'
same_log "$work/whole.log" "$work/forged.log"
ok "RESUME-26 with --override the rates are the settings', bit for bit"
