#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Two nodes with two ranks each; the disk is full for one of them while the other one still writes: that write is
# given up, whoever waits hears which rank it was, on both nodes, and the next checkpoint commits.
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"

"$cairn" init "$CAIRN_STORE" >/dev/null
declare -A node_pid
# node NAME FAULTS FILE: `cairn run` of one node, which has the store at a path of its own. A rank's data are two write
# requests.
node() {
        ln -s "$CAIRN_STORE" "$work/store-$1"
        mkdir -p -m 700 "$work/run-$1"
        CAIRN_LOG=debug CAIRN_FAULT=$2 CAIRN_FAULT_ONCE=$3 XDG_RUNTIME_DIR=$work/run-$1 "$cairn" run --run job \
                --store "$work/store-$1" --rdzv dir --nnodes 2:2 --nproc-per-node 2 --node "$1" --address 127.0.0.1 --every 1000000steps -- \
                "$lockstep" "$work/barrier" "$work/log" --steps 1000000 --elements 3000000 >>"$work/$1.out" 2>&1 &
        node_pid[$1]=$!
}
on() { # NAME: sets $there, the prefix of a command as if typed on that node
        there=(env XDG_RUNTIME_DIR="$work/run-$1" "$cairn")
}
field() { # NAME PATH: of the run, as that node's agent tells it
        on "$1"
        "${there[@]}" status job --json | json "runs.0.$2"
}
last() { # field of the newest log line
        tail -n 1 "$work/log" 2>/dev/null | cut -d' ' -f"$1"
}
reached() { # step
        [ "$(last 3)" -ge "$1" ]
}

# Node b's storage is full for one write request, whenever this file is missing. Node a's first two take long: until then
# the other one has failed, and a has heard of it.
: >"$work/full"
node a data-write:1:delay:8000,data-write:2:delay:8000 ''
node b data-write:0:error:28 "$work/full"
wait_for 60 reached 5

who="rank [23] on node b \(store $work/store-b\)"
rm "$work/full"
on a
try 73 "No space left on device: $who" "${there[@]}" snapshot job --wait --timeout 60
for rank in 0 1; do
        wait_for 60 grep -Eq "rank=$rank .*write=given_up .*after [0-9]+ of [0-9]+ bytes" "$work/a.out"
done
said=$(grep -o 'after [0-9]* of [0-9]* bytes' "$work/a.out")
while read -r _ bytes _ total _; do
        [ "$bytes" -lt "$total" ] || die "all $total bytes of a checkpoint that was given up were written"
done <<<"$said"
ok "one node cannot write: the other one's ranks give their writes up ($(tail -n 1 <<<"$said"))"

tells() { # NAME: status does
        field "$1" error.text | holds -E "$who"
}
for name in a b; do
        wait_for 60 grep -Eq "checkpoint=failed .*No space left on device: $who" "$work/$name.out"
        wait_for 60 tells "$name"
        [ "$(field "$name" attempts_failed)" = 1 ] || die "node $name: $(field "$name" attempts_failed) failures"
done
ok "status and log of both nodes name the rank, its node and the reason"

rm "$work/full"
on b
try 73 "No space left on device: $who" "${there[@]}" snapshot job --wait --timeout 60
ok "so does the answer to whoever waits on the node that does not lead"

try 0 'step [0-9]+' "${there[@]}" snapshot job --wait --timeout 60
try 0 '✓' "$cairn" verify job
[ "$(last 1)" = 1 ] || die "the group started again"
step=$(last 3)
wait_for 60 reached $((step + 5))
has_committed() { # NAME
        [ "$(field "$1" checkpoints)" -ge 1 ]
}
for name in a b; do
        wait_for 60 has_committed "$name"
        [ "$(field "$name" checkpoints)" = 1 ] || die "node $name: $(field "$name" checkpoints) checkpoints"
done
ok "the next checkpoint commits, the run goes on"
on a
try 0 'step' "${there[@]}" stop job --deadline 30
