#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# More ranks than one agent serves: two nodes of 36, whose checkpoint one rank of another world reads whole, from
# more files than are open at a time.
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"

declare -A node_pid
node() { # NAME
        mkdir -p -m 700 "$work/run-$1"
        XDG_RUNTIME_DIR=$work/run-$1 "$cairn" run --run wide --rdzv dir --nnodes 2 --nproc-per-node 36 --node "$1" \
                --address 127.0.0.1 --every 1000000steps -- \
                "$lockstep" "$work/barrier" "$work/log" --steps 100000 --step-ms 300 --elements 7201 >>"$work/$1.out" 2>&1 &
        node_pid[$1]=$!
}
steps() { # at least so many lines in the log
        [ "$(wc -l <"$work/log" 2>/dev/null || echo 0)" -ge "$1" ]
}

node a
node b
wait_for 150 steps 3
try 0 'step [0-9]+' env XDG_RUNTIME_DIR="$work/run-b" "$cairn" snapshot wide --wait --timeout 50
try 0 '✓' "$cairn" verify wide
for name in a b; do
        "$helpers/process" "${node_pid[$name]}" kill-tree
done
world=$(cut -d' ' -f2 "$work/log" | sort -u)
[ "$world" = 72 ] || die "the world was of $world ranks"
ok "72 ranks on two nodes are held at one step and commit it"

: >"$work/log"
newest=$(newest_step_of wide)
run wide --mode resume --rdzv dir --nnodes 1 --node c --address 127.0.0.1 --every 1000000steps -- \
        "$lockstep" "$work/barrier" "$work/log" --steps $((newest + 2)) --elements 7201
[ "$(tail -n 1 "$work/log" | cut -d' ' -f2,3)" = "1 $((newest + 2))" ] || die "it did not go on: $(tail -n 1 "$work/log")"
ok "one rank reads what 72 have written, element by element as it was"
