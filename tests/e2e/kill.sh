#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# SIGKILL, and SIGSTOP with a later SIGCONT, at random instants to trainer, saver, agent, store process,
# `cairn run`, and several at once; a store that hangs, and savers that cannot be ended while it does: no torn
# restore, no lost committed checkpoint, no hang, no step that waits twice in one outage (B01, RESUME-42).
# ROUNDS and SEED as `make check-kill` passes them; without ROUNDS as many as fit into 30 s, at most 25.
mounts=optional
. "$(dirname "$0")/mounts.sh"
[ -x "$helpers/kill_driver" ] || skip "$helpers/kill_driver is not built"
limit=0
[ -n "${ROUNDS:-}" ] || limit=30
rounds=${ROUNDS:-25}
"$cairn" init "$CAIRN_STORE" >"$work/init.out" 2>&1 || die "cairn init failed"
hanging=()
if mount_passfs; then
        "$cairn" init "$mounted/store" >"$work/init.out" 2>&1 || die "cairn init failed"
        hanging=("$mounted/store" "$back/store" "$work/weather")
else
        echo "NOT SHOWN: a store that hangs: $why"
fi
status=0
"$helpers/kill_driver" "$BUILD" "$work" "$rounds" "$SEED" "$limit" "$CAIRN_STORE" "${hanging[@]}" |
        tee "$work/report" || status=$?
if [ $status -ne 0 ]; then
        for run in $(sed -n 's/^round [0-9]*, \(kill-[0-9]*\): ✗.*/\1/p' "$work/report" | sort -u); do
                echo "--- what $run said"
                tail -n 60 "$work/$run.out"
        done
        rm -f "$work"/*.out
        die "repeat it with: make check-kill ROUNDS=$rounds SEED=$SEED"
fi
ok "B01 RESUME-42 random kills, stops and hangs, seed $SEED"
