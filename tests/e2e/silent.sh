#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# An agent that does not answer (SIGSTOP): who asks it ends with a sentence and 124 when his time is over, and
# no command takes its silence for "nothing is running". Afterwards everything is as before.
. "$(dirname "$0")/lib.sh"

start demo --every 10m -- "${tiny[@]}" --steps 1000000 --step-ms 2
wait_step "$work/demo.log" 20 60
pid_of agent
agent=$pid
"$cairn" status demo --watch >"$work/watch.log" 2>&1 &
watcher=$!
wait_for 60 test -s "$work/watch.log"
kill -STOP "$agent"

silence='it did not answer in time: it is stopped'
# ends LOW HIGH PATTERN command...: with 124 after so many ms, and says so.
ends() {
        local low=$1 high=$2 pattern=$3 began took
        shift 3
        began=$(now_ms)
        try 124 "$pattern" "$cairn" "$@"
        took=$(($(now_ms) - began))
        [ "$took" -ge "$low" ] && [ "$took" -le "$high" ] || die "cairn $*: $took ms"
        ok "cairn $*: 124 after $took ms"
}
# Upper limits leave room for a busy machine; without the change they were 10 s and more.
ends 1900 8500 "$silence" status demo
ends 1900 8500 "$silence" status
grep -q 'demo.sock' <<<"$said" || die "the agent is not named: $said"
! grep -q 'no run is running' <<<"$said" || die "silence was taken for nothing: $said"
ends 1900 8500 "$silence" status --json
ends 1900 8500 "$silence" snapshot demo --timeout 2s
ends 400 7000 "$silence" snapshot demo --wait --timeout 500ms
ends 9000 16000 "$silence" drain
wait_for 60 grep -q 'demo: the agent does not answer' "$work/watch.log"
kill -CONT "$agent"
try 0 'committed as' "$cairn" snapshot demo --wait

# In the middle of a request: the agent cannot time it any more.
"$cairn" snapshot demo --wait --timeout 60s >"$work/first.log" 2>&1 || die "$(cat "$work/first.log")"
pid_of saver
kill -STOP "$pid"
began=$(now_ms)
"$cairn" snapshot demo --wait --timeout 1s >"$work/late.log" 2>&1 &
asking=$!
sleep 0.3
kill -STOP "$agent"
code=0
wait $asking || code=$?
took=$(($(now_ms) - began))
kill -CONT "$agent" "$pid"
[ "$code" -eq 124 ] && [ "$took" -lt 8500 ] || die "exit $code after $took ms: $(cat "$work/late.log")"
says "$work/late.log" "$silence|is still being written|no cut was committed"
ok "an agent that falls silent in the middle of a request: 124 after $took ms"

[ "$(grep -c 'does not answer' "$work/watch.log")" -ge 1 ] || die "$(cat "$work/watch.log")"
try 0 'stopped; step' "$cairn" stop demo
finish 60
expect_code 0
wait_for 60 gone "$watcher"
grep -Eq 'not running|finished|demo: live' "$work/watch.log" || die "$(cat "$work/watch.log")"
never_says "$output" 'restart 1'
ok "the watcher says it once and goes on; the run ends as always"
