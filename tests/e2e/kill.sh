#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# SIGKILL at random instants to trainer, saver, agent, store process, `cairn run`, and several at once:
# no torn restore, no lost committed checkpoint, no hang (B01, RESUME-42). ROUNDS and SEED as `make
# check-kill` passes them; without ROUNDS as many rounds as fit into 30 s, at most 15.
. "$(dirname "$0")/lib.sh"
[ -x "$helpers/kill_driver" ] || skip "$helpers/kill_driver is not built"
limit=0
[ -n "${ROUNDS:-}" ] || limit=30
"$cairn" init "$CAIRN_STORE" >"$work/init.out" 2>&1 || die "cairn init failed"
status=0
"$helpers/kill_driver" "$BUILD" "$work" "${ROUNDS:-15}" "$SEED" "$limit" | tee "$work/report" || status=$?
if [ $status -ne 0 ]; then
        for run in $(sed -n 's/^round [0-9]*, \(kill-[0-9]*\): ✗.*/\1/p' "$work/report" | sort -u); do
                echo "--- what $run said"
                tail -n 40 "$work/$run.out"
                "$cairn" list "$run" || true
        done
        rm -f "$work"/*.out
        die "repeat it with: make check-kill ROUNDS=${ROUNDS:-15} SEED=$SEED"
fi
ok "B01 RESUME-42 random kills, seed $SEED"
