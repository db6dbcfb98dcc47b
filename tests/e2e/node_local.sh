#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 700 s
#
# Node-local stores: two nodes with two ranks each, a directory each, that meet at a real etcd. What one has the
# other cannot read, and yet there is one decision: killed between the nodes' COMMITs, restarted, started on other
# nodes, with a disk that was replaced.
if [ -z "${CAIRN_E2E_NETWORK:-}" ]; then
        export CAIRN_E2E_NETWORK=$$
        if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! unshare -n true 2>/dev/null; then
                echo "a network namespace cannot be made here (root and iproute2 are needed)"
                exit 77
        fi
        exec unshare -n bash "$0" "$@" # etcd has its ports for itself
fi
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"
command -v etcd >/dev/null || skip "etcd is missing (./setup check)"
ip link set lo up
etcd --data-dir "$work/etcd" >"$work/etcd.log" 2>&1 &
disown $!
wait_for 60 env ETCDCTL_API=3 etcdctl endpoint health


unset CAIRN_STORE
declare -A node_pid
args=(--nnodes 2 --nproc-per-node 2 --every 25steps) # of each node's `cairn run`
# node NAME [options]: `cairn run` of one node in its own store, $work/store-NAME; $FAULT: of that node alone.
node() {
        local name=$1
        shift
        mkdir -p -m 700 "$work/run-$name"
        CAIRN_FAULT=${FAULT:-} CAIRN_FAULT_ONCE=$work/fired XDG_RUNTIME_DIR=$work/run-$name "$cairn" run --run job \
                --store "$work/store-$name" --rdzv etcd://127.0.0.1:2379 --node "$name" --address 127.0.0.1 \
                "${args[@]}" "$@" -- "$lockstep" "$work/barrier" "$work/log" --steps 100000 >>"$work/$name.out" 2>&1 &
        node_pid[$name]=$!
}
on() { # NAME: sets $there, the prefix of a command as if typed on that node
        there=(env XDG_RUNTIME_DIR="$work/run-$1" CAIRN_STORE="$work/store-$1" "$cairn")
}
last() { # field of the newest log line
        tail -n 1 "$work/log" 2>/dev/null | cut -d' ' -f"$1"
}
reached() { # generation at least, step
        [ "$(last 1)" -ge "$1" ] && [ "$(last 3)" -ge "$2" ]
}
newest() { # NAME: step of the newest checkpoint in that node's store
        CAIRN_STORE=$work/store-$1 newest_step_of job
}
kill_nodes() {
        local name
        for name in a b; do
                "$helpers/process" "${node_pid[$name]}" kill-tree
        done
}
ends_with() { # NAME CODE: its `cairn run` ends so
        runner=${node_pid[$1]}
        finish 60
        expect_code "$2"
}
begun_at() { # NAME: the step that its newest ranks began after
        sed -n 's/^lockstep: rank .* begins after step \([0-9]*\)$/\1/p' "$work/$1.out" | tail -n 1
}
same_and_whole() { # WHAT: both stores hold the same newest checkpoint, whole as far as they go
        local name
        for name in a b; do
                on "$name"
                try 0 '✓' "${there[@]}" verify job
        done
        [ "$(newest a)" = "$(newest b)" ] || die "$1: node a has step $(newest a), node b $(newest b)"
}
stop_all() {
        on a
        try 0 'step' "${there[@]}" stop job --deadline 50
        ends_with a 0
        ends_with b 0
}
again() { # both go on, past where they were
        local generation=$(($(last 1) + 1)) step
        step=$(last 3)
        node a --mode resume
        node b --mode resume
        wait_for 60 reached "$generation" $((step + 30))
}

for name in a b; do
        try 0 '' "$cairn" init --kind node-local "$work/store-$name"
done
node a
node b
wait_for 60 reached 1 60
for name in a b; do
        on "$name"
        try 0 'step [0-9]+' "${there[@]}" snapshot job --wait --timeout 50
done
stop_all
same_and_whole "after the stop"
for name in a b; do
        [ "$(json 'code&reason&step' <"$work/store-$name/job/exit.json")" = "0 completed $(newest "$name")" ] ||
                die "node $name: $(cat "$work/store-$name/job/exit.json")"
done
[ ! -e "$work/store-a/job/$(ls "$work/store-a/job" | grep -E '^[0-9]{12}-' | tail -n 1)/rank-00002.data" ] ||
        die "node a holds data of node b's ranks"
ok "two nodes with a directory each cut, commit and end together"

# What each of them says of itself.
on b
checkpoint=job/$("${there[@]}" list job --json | json 'checkpoints.*.checkpoint' | tr -d '"' | tail -n 1)
try 0 'node b, ranks 2 to 3 of 4' "${there[@]}" verify "$checkpoint"
try 0 'node b, ranks 2 to 3 of 4' "${there[@]}" inspect "$checkpoint"
try 0 'node-local.*node b' "${there[@]}" list job
ok "verify, inspect and list say whose ranks they show"

again
[ "$(begun_at a)" = "$(begun_at b)" ] || die "a began after step $(begun_at a), b after $(begun_at b)"
ok "restarted on the same nodes they go on bit for bit"

# Killed while they commit, at every point of it: stopped there, then both nodes are killed.
for fault in a:commit-record:2 b:commit-record:2 a:commit-rename:2 b:commit-rename:2 b:manifest-rename:4 \
        a:generation-start:1 b:generation-claim:1; do
        who=${fault%%:*}
        kill_nodes
        rm -f "$work/fired"
        before=$(last 3)
        FAULT=$([ "$who" = a ] && echo "${fault#*:}:stop") node a --mode resume
        FAULT=$([ "$who" = b ] && echo "${fault#*:}:stop") node b --mode resume
        wait_for 60 test -e "$work/fired"
        sleep 0.3 # what the others do meanwhile
        newest_a=$(newest a) newest_b=$(newest b)
        kill_nodes
        again
        at=$(begun_at a)
        [ "$at" = "$(begun_at b)" ] || die "$fault: a began after step $at, b after $(begun_at b)"
        [ "$at" -ge "$newest_a" ] && [ "$at" -ge "$newest_b" ] ||
                die "$fault: they began after step $at; a had $newest_a, b $newest_b"
        case $fault in
        *:commit-*) [ "$at" -gt "$newest_a" ] || [ "$at" -gt "$newest_b" ] ||
                die "$fault: what was whole on both nodes was not rolled forward: step $at, a $newest_a, b $newest_b" ;;
        esac
        ok "both killed with node $who stopped at ${fault#*:}: they go on after step $at (a had $newest_a, b $newest_b)"
done
stop_all
same_and_whole "after kills"
ok "after all that each store is whole, and the newest checkpoint the same"

# Other nodes, or one whose disk is not what it was.
at=$(newest a)
try 0 '' "$cairn" init --kind node-local "$work/store-c"
node a --mode resume
node c --mode resume
ends_with a 78
says "$work/a.out" 'the run is one of nodes a \(2 ranks\), b \(2 ranks\), and here are a \(2 ranks\), c \(2 ranks\)'
kill -TERM "${node_pid[c]}" 2>/dev/null || true
runner=${node_pid[c]}
finish 60
ok "another node instead of b is refused, and both are named"
mv "$work/store-b" "$work/store-b-lost"
try 0 '' "$cairn" init --kind node-local "$work/store-b"
node a --mode resume
node b --mode resume
ends_with a 65
says "$work/a.out" 'node b does not hold its part'
kill -TERM "${node_pid[b]}" 2>/dev/null || true
runner=${node_pid[b]}
finish 60
ok "node b with an empty disk is refused: nothing is torn together"
rm -rf "$work/store-b"
mv "$work/store-b-lost" "$work/store-b"
again
[ "$(begun_at a)" -ge "$at" ] || die "they began after step $(begun_at a), not $at"
stop_all
same_and_whole "at the end"
ok "with its disk back they go on from step $at"

# One node's part is damaged: all fall back, and both say from what, why and where.
damaged=$(printf '%012d' "$(newest b)")
truncate -s 100 "$work/store-b/job/$damaged"-g*/rank-00002.data
node a --mode resume
node b --mode resume
for name in a b; do
        wait_for 60 grep -q "$damaged-g.* is damaged (.*node b.*; fell back to " "$work/$name.out"
done
wait_for 60 eval '[ "$(begun_at b)" -lt "$((10#$damaged))" ]'
stop_all
ok "a damaged part of one node is told on both, with what they fall back to"

# What cannot be, with a sentence that says what to do.
on a
try 64 'a folder cannot be where they meet.*etcd' "${there[@]}" run --run other --rdzv dir --nnodes 2 --node a -- true
try 64 'give --nnodes N' "${there[@]}" run --run other --rdzv etcd://127.0.0.1:2379 --nnodes 1:2 --node a -- true
try 78 'node-local.*--nnodes N --rdzv' "${there[@]}" run --run other -- true
for name in a b; do
        "$cairn" init "$work/shared-$name" >/dev/null
        mkdir -p -m 700 "$work/run-$name"
        XDG_RUNTIME_DIR=$work/run-$name "$cairn" run --run other --store "$work/shared-$name" \
                --rdzv etcd://127.0.0.1:2379 --nnodes 2 --node "$name" -- true >>"$work/$name.out" 2>&1 &
        node_pid[$name]=$!
done
ends_with a 78
ends_with b 78
says "$work/a.out" 'it is another store than that of node b'
says "$work/b.out" 'it is another store than that of node a'
[ ! -e "$work/shared-a/other" ] && [ ! -e "$work/shared-b/other" ] || die "a refused start made something"
ok "a folder as rendezvous, a set of nodes that may change, and a shared store that is not shared are refused"
