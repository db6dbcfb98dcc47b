#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# cairn-train on two nodes with a directory each: what is replicated is written once a node, what is sharded where its
# rank is, and each rank reads its own node's alone. Killed in the middle, the losses are the undisturbed run's.
if [ -z "${CAIRN_E2E_NETWORK:-}" ]; then
        export CAIRN_E2E_NETWORK=$$
        if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! unshare -n true 2>/dev/null; then
                echo "a network namespace cannot be made here (root and iproute2 are needed)"
                exit 77
        fi
        exec unshare -n bash "$0" "$@" # etcd has its ports for itself
fi
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
command -v etcd >/dev/null || skip "etcd is missing (./setup check)"
ip link set lo up
etcd --data-dir "$work/etcd" >"$work/etcd.log" 2>&1 &
disown $!
wait_for 60 env ETCDCTL_API=3 etcdctl endpoint health
args=("${tiny[@]}" --steps 60 --dropout 0.1 --ema 0.9)

declare -A node_pid
node() { # NAME RUN ZERO MODE [options of cairn-train]
        local name=$1 run=$2 zero=$3 mode=$4
        shift 4
        mkdir -p -m 700 "$work/run-$name"
        XDG_RUNTIME_DIR=$work/run-$name "$cairn" run --run "$run" --store "$work/store-$name" --mode "$mode" --every 10steps \
                --rdzv etcd://127.0.0.1:2379 --node "$name" --address 127.0.0.1 --nnodes 2 --nproc-per-node 2 -- \
                "${args[@]}" --zero "$zero" --step-ms 20 --interface 127.0.0.1 --log "$work/$run.log" "$@" \
                >>"$work/$name.out" 2>&1 &
        node_pid[$name]=$!
}
has_checkpoint() { # NAME RUN: in that node's store
        [ -n "$(CAIRN_STORE=$work/store-$1 steps_of "$2")" ]
}
run reference --nproc-per-node 4 --every 50steps -- "${args[@]}"
for name in a b; do
        try 0 '' "$cairn" init --kind node-local "$work/store-$name"
done
for zero in 0 1; do
        job=zero-$zero
        node a "$job" $zero fresh --stall-step 40 --stall-ms 100000 # killed before
        node b "$job" $zero fresh --stall-step 40 --stall-ms 100000
        runner=${node_pid[a]}
        wait_step "$work/$job.log" 25 60
        for name in a b; do
                wait_for 60 has_checkpoint "$name" "$job"
        done
        for name in a b; do
                "$helpers/process" "${node_pid[$name]}" kill-tree
        done
        node a "$job" $zero resume
        node b "$job" $zero resume
        for name in a b; do
                runner=${node_pid[$name]}
                finish 90
                expect_code 0
                try 0 "node $name, ranks" "$cairn" verify "$job" --store "$work/store-$name"
        done
        says "$work/b.out" 'resumes step [1-9]'
        same_log "$work/reference.log" "$work/$job.log"
        ok "--zero $zero: killed on both nodes and resumed, each rank from its own node's data, the losses are the same"
        if [ "$zero" = 1 ]; then # what is complete stays so: each node knows the end
                node a "$job" 1 auto
                node b "$job" 1 auto
                for name in a b; do
                        runner=${node_pid[$name]}
                        finish 60
                        expect_code 0
                done
                ok "a finished run is finished on both nodes"
        fi
done
