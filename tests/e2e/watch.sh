#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# status --watch: lines on a pipe, one picture drawn over itself on a terminal; it ends with the run and
# survives its agent. snapshot --wait shows its progress on a terminal.
. "$(dirname "$0")/lib.sh"
on_terminal() { # file, command...: with a terminal as its standard streams
        local file=$1
        shift
        timeout -k 5 200 script -qfec "$(printf '%q ' "$@")" "$file" </dev/null >/dev/null
}
start show --every 20steps -- "${tiny[@]}" --steps 100000 --step-ms 10
wait_step "$work/show.log" 5 60
timeout 200 "$cairn" status show --watch >"$work/lines.out" 2>&1 &
watcher=$!
timeout 200 "$cairn" status show --watch --json >"$work/json.out" 2>&1 &
json_watcher=$!
if command -v script >/dev/null; then
        on_terminal "$work/terminal.out" "$cairn" status show --watch &
        terminal=$!
fi
two_lines() {
        [ "$(grep -c '^show: live' "$work/lines.out")" -ge 2 ]
}
wait_for 60 two_lines
pid_of agent
kill -KILL "$pid"
wait_step "$work/show.log" 200 60
try 0 stopped "$cairn" stop show
finish 60
for p in $watcher $json_watcher ${terminal:-}; do
        wait "$p" || die "a watcher ended with $?"
done
says "$work/lines.out" '^show: .*step [0-9]+, committed [0-9]+'
says "$work/lines.out" '^show: not running'
never_says "$work/lines.out" $'\033'
head -n 1 "$work/json.out" | json state | holds live || die "no JSON line: $(head -n 1 "$work/json.out")"
ok "--watch: lines and JSON, over the agent's death, to the end of the run"
if [ -n "${terminal:-}" ]; then
        grep -q $'\033\\[[0-9]*F' "$work/terminal.out" || die "nothing was drawn over"
        ok "--watch redraws on a terminal"
        start slow --every 10m -- "${tiny[@]}" --steps 6000 --step-ms 20
        wait_step "$work/slow.log" 5 60
        pid_of saver
        kill -STOP "$pid"
        on_terminal "$work/progress.out" "$cairn" snapshot slow --wait &
        terminal=$!
        wait_for 60 grep -Eq 'waiting for the trainer|step [0-9]+, writing' "$work/progress.out"
        kill -CONT "$pid"
        wait "$terminal" || die "snapshot on a terminal"
        says "$work/progress.out" 'committed as'
        kill_all
        ok "snapshot --wait shows its progress on a terminal"
fi
try 0 'not running' "$cairn" status show --watch
try 64 'no run is named' "$cairn" status --watch
ok "a run that is not running is not waited for"
