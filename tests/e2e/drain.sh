#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# drain: every run of this user's agents is stopped at its own step, at the same time, and can be resumed.
. "$(dirname "$0")/lib.sh"
try 0 'no run is running' "$cairn" drain
"$cairn" init "$CAIRN_STORE" >"$work/init.out" 2>&1 || die "cairn init failed"
start one --every 10m -- "${tiny[@]}" --steps 60000 --step-ms 5
first=$runner
start two --every 10m -- "${tiny[@]}" --steps 60000 --step-ms 5
wait_step "$work/one.log" 5 100
wait_step "$work/two.log" 5 100
try 0 '^one: stopped; step [0-9]+ is committed' "$cairn" drain --deadline 100s
grep -Eq '^two: stopped; step [0-9]+ is committed' <<<"$said" || die "$said"
finish 100
expect_code 75
runner=$first
finish 100
expect_code 75
for run in one two; do
        [ "$(newest_of "$run")" ] || die "$run has no checkpoint"
done
try 0 'no run is running' "$cairn" drain
try 64 'one argument too many' "$cairn" drain one
ok "two runs stopped by one drain, each with 75"
