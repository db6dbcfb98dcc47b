#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# status, list, inspect and verify: what people read, and JSON that parses with the same content.
# Exactly one restore line and one JSON object a start (RESUME-47).
. "$(dirname "$0")/lib.sh"
# Nothing has happened yet.
"$cairn" init "$CAIRN_STORE" >"$work/init.out" 2>&1 || die "cairn init failed"
try 0 'RUN' "$cairn" list
start show --every 10steps --keep-last 2 -- "${tiny[@]}" --steps 60 --dropout 0.1 --ema 0.9 \
        --stall-step 36 --stall-ms 200000
wait_step "$work/show.log" 35 60
try 0 'committed' "$cairn" snapshot show --wait --tag 'before lunch'
try 0 'show' "$cairn" status show
grep -Eq '35' <<<"$said" || die "status does not say the step: $said"
try 0 'show' "$cairn" status
try 0 '{' "$cairn" status show --json
json '' <<<"$said" >/dev/null || die "status --json is not JSON: $said"
[ "$(json 'runs.0.committed.step' <<<"$said")" = 35 ] || die "status --json: committed: $said"
ok "status, text and JSON"
kill_all
: >"$output"
start show --mode resume --every 10steps --keep-last 2 -- "${tiny[@]}" --steps 60 --dropout 0.1 --ema 0.9
finish 60
expect_code 0
[ "$(grep -c '^start ' "$output")" -eq 1 ] || die "not exactly one restore line"
says "$output" '^start resume, step 35, checkpoint 000000000035-g0001, .*bit-exact'
[ "$(grep '^{' "$output" | json 'event&mode&step&bit_exact')" = 'restore resume 35 true' ] ||
        die "not exactly one JSON object a start"
ok "RESUME-47 $(grep '^start ' "$output")"

try 0 '000000000060-g0002 .*newest' "$cairn" list show
grep -q 'finished at step 60' <<<"$said" || die "list does not say that it is finished"
[ "$("$cairn" list show --json | json 'checkpoints.#')" -ge 2 ] || die "list --json"
[ "$("$cairn" list show --json | json finished)" = true ] || die "list --json: finished"
[ "$("$cairn" list --json | json 'runs.*.run&step&finished')" = "show 60 true" ] || die "list --json of all"
try 0 'show +60 .*finished' "$cairn" list
mkdir "$CAIRN_STORE"/{z,m,b,k,a}-run
[ "$("$cairn" list | awk 'NR > 1 { print $1 }' | tr '\n' ' ')" = "a-run b-run k-run m-run show z-run " ] ||
        die "list does not sort the runs: $("$cairn" list)"
rmdir "$CAIRN_STORE"/?-run
try 66 "run nobody: the store $CAIRN_STORE has no run of this name; .cairn list. shows" "$cairn" list nobody
try 0 'plain: ended with 0, but no checkpoint was committed: nothing can be resumed' "$cairn" run --run plain -- true
never_says "$output" 'nothing can be resumed'
try 0 'show: is finished .*; nothing to do' "$cairn" run --run show --mode auto -- true
! grep -q 'nothing can be resumed' <<<"$said" || die "a finished run: $said"
ok "a command that never called libcairn is told apart from one that did"
ok "list, text and JSON; which store it was that lacks a run"
try 0 '^step +60' "$cairn" inspect show --tensors
grep -Eq 'moment2 +f32' <<<"$said" || die "inspect does not list the moments: $said"
grep -Eq 'data\.samples +120' <<<"$said" || die "inspect does not show the samples seen: $said"
"$cairn" inspect show --json | json states.0.values | holds '"data.samples":120[,}]' ||
        die "inspect --json does not show the samples seen"
[ "$("$cairn" inspect show@60 --tensors --json | json 'tensors.#')" = \
        "$("$cairn" inspect show@60 --json | json tensor_count)" ] || die "inspect --json --tensors"
ok "inspect, text and JSON"
try 0 '✓' "$cairn" verify show
[ "$("$cairn" verify show --json | json good)" = true ] || die "verify --json"
try 0 '✓' "$cairn" verify "$CAIRN_STORE/show/000000000060-g0002"
ok "verify, text and JSON"
for command in "list show" "list show --json" "inspect show" "verify show --json" "--help"; do
        # shellcheck disable=SC2086
        try 74 'write standard output: No space' sh -c '"$0" "$@" >/dev/full' "$cairn" $command
done
ok "an answer that cannot be written is no success: 74"
"$cairn" run --run closed -- sh -c 'for fd in 0 1 2; do
        is="$is $(readlink /proc/$$/fd/$fd)"; done; echo $is >"$0"' "$work/fds" <&- >&- 2>&- ||
        die "cairn run without standard descriptors"
[ "$(cat "$work/fds")" = '/dev/null /dev/null /dev/null' ] || die "they are $(cat "$work/fds")"
ok "closed standard descriptors are never anything else's"
for command in demo init run status snapshot stop list inspect verify; do
        try 0 "usage: cairn $command|$command" "$cairn" $command --help
done
try 0 'usage' "$cairn" --help
try 0 '[0-9]\.[0-9]' "$cairn" --version
ok "every command has --help"
