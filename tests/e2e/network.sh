#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# Four nodes with two ranks each, as network namespaces on one bridge, that meet at a real etcd: one is
# killed, one loses its link, one hangs and comes back late. The others know within 10 s and go on
# within 2 s after that, as far as a busy machine lets them; nothing of the lost node is in a checkpoint.
if [ -z "${CAIRN_E2E_NETWORK:-}" ]; then
        export CAIRN_E2E_NETWORK=$$
        if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! unshare -m -n true 2>/dev/null; then
                echo "network namespaces cannot be made here (root and iproute2 are needed)"
                exit 77
        fi
        # Namespaces are named by mounts: in a mount namespace of the script's own they go with it.
        exec unshare -m -n --propagation private bash "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"
command -v etcd >/dev/null || skip "etcd is missing (./setup check)"

mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip link set lo up
ip link add bridge0 type bridge 2>"$work/bridge.out" || skip "no bridges here: $(cat "$work/bridge.out")"
ip addr add 10.77.0.1/24 dev bridge0
ip link set bridge0 up
nodes='a b c d'
number=1
for node in $nodes; do
        number=$((number + 1))
        ip netns add "$node"
        ip link add "to-$node" type veth peer name eth0 netns "$node"
        ip link set "to-$node" master bridge0 up
        ip -n "$node" addr add "10.77.0.$number/24" dev eth0
        ip -n "$node" link set eth0 up
        ip -n "$node" link set lo up
done
etcd --data-dir "$work/etcd" --listen-client-urls http://10.77.0.1:2379 \
        --advertise-client-urls http://10.77.0.1:2379 --listen-peer-urls http://10.77.0.1:2380 \
        --initial-advertise-peer-urls http://10.77.0.1:2380 --initial-cluster default=http://10.77.0.1:2380 \
        >"$work/etcd.log" 2>&1 &
disown $!
etcd_answers() {
        ETCDCTL_API=3 etcdctl --endpoints http://10.77.0.1:2379 endpoint health
}
wait_for 60 etcd_answers

declare -A node_pid
start_node() { # NAME [options]
        local name=$1
        shift
        mkdir -p -m 700 "$work/run-$name"
        XDG_RUNTIME_DIR=$work/run-$name ip netns exec "$name" "$cairn" run --run job \
                --rdzv etcd://10.77.0.1:2379 --nnodes 2:4 --nproc-per-node 2 --node "$name" --every 25steps "$@" -- \
                "$lockstep" "$work/barrier" "$work/log" --steps 1000000 >>"$work/$name.out" 2>&1 &
        node_pid[$name]=$!
        disown $!
}
last() { # field of the newest log line
        tail -n 1 "$work/log" 2>/dev/null | cut -d' ' -f"$1"
}
reached() { # world, step, generation: that or a later one
        [ "$(last 2)" = "$1" ] && [ "$(last 3)" -ge "$2" ] && [ "$(last 1)" -ge "$3" ]
}
# after WHAT WORLD GENERATION: a later group has so many ranks and is past the newest checkpoint.
after() {
        local what=$1 world=$2 before started took
        before=$(newest_step_of job)
        started=$(now_ms)
        wait_for 60 reached "$world" $((before + 1)) $(($3 + 1))
        took=$(($(now_ms) - started))
        [ "$took" -lt 30000 ] || die "$what: the new group took $took ms"
        ok "$what: $world ranks go on from step $before or later, after $took ms"
}
freeze() { # NAME, STOP or CONT: `cairn run` and all below it
        local pid
        for pid in ${node_pid[$1]} $("$helpers/process" "${node_pid[$1]}" all); do
                kill "-$2" "$pid" 2>/dev/null || true
        done
}
for node in $nodes; do
        start_node "$node"
done
wait_for 60 reached 8 60 1
ok "four nodes form a group of eight ranks"

generation=$(last 1)
"$helpers/process" "${node_pid[b]}" kill-tree
after "a node is killed" 6 "$generation"

generation=$(last 1)
ip link set to-c down
after "a node's link is cut" 4 "$generation"
wait_for 60 grep -q 'start again with the others' "$work/c.out"

generation=$(last 1)
freeze d STOP
sleep 12 # only one node is left: too few, it waits
ip link set to-c up
after "a node hangs, and the one that was cut off has its link again" 4 "$generation"
freeze d CONT
now=$(last 3)
wait_for 60 grep -Eq 'start again with the others' "$work/d.out"
wait_for 60 reached 4 $((now + 60)) "$generation"
try 0 '✓' "$cairn" verify job
ok "it wakes up late and is refused; what is committed is whole"
