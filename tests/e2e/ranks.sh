#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Several ranks of one node: scheduled and demanded cuts are of one step; one
# killed, all start again from it; another number of ranks takes the same checkpoint.
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"

last_line() { # field of the newest log line
        tail -n 1 "$work/log" 2>/dev/null | cut -d' ' -f"$1"
}
reached() { # step
        [ "$(last_line 3)" -ge "$1" ]
}
start four --nproc-per-node 4 --every 25steps -- "$lockstep" "$work/barrier" "$work/log" --steps 100000
wait_for 60 reached 60
for round in 1 2 3 4 5; do
        try 0 'step [0-9]+' "$cairn" snapshot four --wait --timeout 50
done
ok "demanded cuts of four ranks are of one step"

pid=$("$cairn" status four --json | json runs.0.ranks.3.pid)
before=$(newest_step_of four)
kill -KILL "$pid"
started_again() {
        [ "$(last_line 1)" = 2 ] && reached $((before + 1))
}
wait_for 60 started_again
try 0 '✓' "$cairn" verify four
ok "B20 RESUME-30 one rank killed: the group goes on from step $before or later, each rank with its own stream"
try 0 '' "$cairn" stop four --deadline 50
finish 60

# Two ranks, then others, take what four have written: lockstep compares every element.
for world in 2 8 3 1; do
        from=$(newest_step_of four)
        : >"$work/log"
        start four --mode resume --nproc-per-node "$world" --every 25steps -- \
                "$lockstep" "$work/barrier-$world" "$work/log" --steps 100000
        wait_for 60 reached $((from + 30))
        [ "$(last_line 2)" = "$world" ] || die "not $world ranks"
        try 0 '' "$cairn" stop four --deadline 50
        finish 60
done
ok "B15 4 -> 2 -> 8 -> 3 -> 1 ranks: each takes the part it needs, every element right"
