#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# A command that does not call libcairn is told so while it runs: once, after a minute, and nothing else happens
# to it. One that does never hears of it, whatever becomes of its session.
. "$(dirname "$0")/lib.sh"

start speaking --every 10m -- "${tiny[@]}" --steps 1000000 --step-ms 50
speaking=$runner
# Ends its session and goes on: an export, say.
start called --every 10m -- sh -c "$(printf '%q ' "${tiny[@]}" --steps 20) && exec sleep 1000"
called=$runner
is_over() {
        [ "$("$cairn" status called --json | json 'runs.0.finished')" = true ]
}
wait_for 120 is_over
began=$(now_ms)
start mute --every 10m -- sleep 1000
wait_for 300 grep -q 'mute: the command has not called libcairn for 60 s: nothing of it is saved' "$output"
took=$(($(now_ms) - began))
[ "$took" -ge 60000 ] || die "it was told after $took ms"
kill -0 "$runner" || die "the run ended"
[ "$(grep -c 'has not called' "$output")" -eq 1 ] || die "told more than once: $(cat "$output")"
ok "a command that does not call libcairn is told so once, after $took ms, and goes on"
kill_all

for run in speaking called; do
        never_says "$work/$run.out" 'has not called'
done
kill -0 "$speaking" "$called" || die "a run ended"
ok "one that calls it hears nothing of it, nor one whose session is over"
for runner in "$speaking" "$called"; do
        kill_all
done
