#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# `cairn run` under launchers, as their variables show them: Slurm and torchrun start one on each of two nodes,
# which find run, nodes and ranks by themselves and are requeued; a launcher that starts one a rank is refused.
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
args=("${tiny[@]}" --batch 1 --global-batch 4 --dropout 0.1 --steps 40)
cat >"$work/trainer" <<'EOF'
#!/bin/sh
env | grep -E '^(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|GROUP_WORLD_SIZE|ROLE_RANK|MASTER_ADDR|MASTER_PORT|CAIRN_RUN|CAIRN_ADDRESS)=' >"$SEEN/$THERE-$LOCAL_RANK"
exec "$@"
EOF
chmod +x "$work/trainer"

declare -A process
# launch NAME VARIABLES... -- options: one process of a launcher, with a runtime directory as on a machine of its own.
launch() {
        local name=$1 variables=()
        shift
        while [ "$1" != -- ]; do
                variables+=("$1")
                shift
        done
        shift
        mkdir -p -m 700 "$work/run-$name" "$work/seen"
        env "${variables[@]}" XDG_RUNTIME_DIR="$work/run-$name" SEEN="$work/seen" THERE="$name" \
                "$cairn" run --mode auto --address 127.0.0.1 --every 10steps "$@" >>"$work/$name.out" 2>&1 &
        process[$name]=$!
}
ends() { # NAME CODE
        runner=${process[$1]}
        finish 100
        expect_code "$2"
}
seen() { # NODE-LOCAL_RANK VARIABLE
        sed -n "s/^$2=//p" "$work/seen/$1"
}
expect_seen() { # NODE-LOCAL_RANK VARIABLE VALUE
        [ "$(seen "$1" "$2")" = "$3" ] || die "$1 has $2=$(seen "$1" "$2"), not $3"
}

run reference --nproc-per-node 4 -- "${args[@]}"

# srun --ntasks-per-node=1 on two nodes with two GPUs each; then all tasks have SIGTERM, and the job is requeued.
srun() { # NODE NUMBER OPTIONS...
        local node=$1 number=$2
        shift 2
        launch "$node" SLURM_JOB_ID=77 SLURM_JOB_NAME=gpt SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_STEP_ID=0 \
                SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=1 \
                SLURM_PROCID="$number" SLURM_NODEID="$number" SLURM_LOCALID=0 SLURMD_NODENAME="$node" \
                SLURM_GPUS_ON_NODE=2 -- --rdzv dir -- \
                "$work/trainer" "${args[@]}" --log "$work/gpt.log" "$@"
}
srun n1 0 --step-ms 300
srun n2 1 --step-ms 300
runner=${process[n1]}
wait_step "$work/gpt.log" 3 100
look_at_everything() { # Slurm signals all processes of a step
        local name
        everything=("${process[n1]}" "${process[n2]}")
        for name in n1 n2; do
                for pid in $("$helpers/process" "${process[$name]}" all); do
                        everything+=("$pid")
                done
        done
        [ ${#everything[@]} -ge 16 ]
}
wait_for 60 look_at_everything
kill -TERM "${everything[@]}"
ends n1 75
ends n2 75
for name in n1 n2; do
        never_says "$work/$name.out" 'level=(warning|error)'
done
srun n2 1
srun n1 0
ends n1 0
ends n2 0
says "$work/n1.out" 'gpt-77: resumes step'
same_log "$work/reference.log" "$work/gpt.log"
port=$(seen n1-0 MASTER_PORT)
[ "$port" -gt 0 ] && [ "$port" -ne 29500 ] || die "MASTER_PORT is '$port', not a free one"
rank=0
for place in n1-0 n1-1 n2-0 n2-1; do
        expect_seen $place RANK $rank
        expect_seen $place ROLE_RANK $rank
        expect_seen $place WORLD_SIZE 4
        expect_seen $place LOCAL_WORLD_SIZE 2
        expect_seen $place LOCAL_RANK $((rank % 2))
        expect_seen $place GROUP_RANK $((rank / 2))
        expect_seen $place NODE_RANK $((rank / 2))
        expect_seen $place GROUP_WORLD_SIZE 2
        expect_seen $place MASTER_ADDR 127.0.0.1
        expect_seen $place MASTER_PORT "$port"
        expect_seen $place CAIRN_RUN gpt-77
        expect_seen $place CAIRN_ADDRESS 127.0.0.1
        rank=$((rank + 1))
done
ok "Slurm, one task a node: name, nodes, ranks from its variables; SIGTERM is 75, requeued it goes on bit for bit"

# torchrun --nproc-per-node 1 on two nodes: its order of nodes, its port.
torchrun() { # NAME GROUP_RANK
        launch "$1" RANK="$2" LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 GROUP_RANK="$2" GROUP_WORLD_SIZE=2 \
                ROLE_RANK="$2" ROLE_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=31234 \
                TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=False -- \
                --run torch --nproc-per-node 2 --rdzv dir -- \
                "$work/trainer" "${args[@]}" --log "$work/torch.log"
}
torchrun a 1
torchrun b 0
ends a 0
ends b 0
same_log "$work/reference.log" "$work/torch.log"
rank=0
for place in b-0 b-1 a-0 a-1; do
        expect_seen $place RANK $rank
        expect_seen $place MASTER_PORT 31234
        rank=$((rank + 1))
done
ok "torchrun, one process a node: the ranks are in its order, MASTER_PORT is the one it gave"

# One process a rank, or a batch script that is on one of two nodes: refused before anything is made.
before=$(digest "$CAIRN_STORE")
for number in 0 1 2 3; do
        launch "task-$number" SLURM_JOB_ID=78 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=$number \
                SLURM_LOCALID=$number -- -- "$work/trainer" "${args[@]}"
        launch "worker-$number" RANK=$number LOCAL_RANK=$number WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 -- \
                --rdzv dir -- "$work/trainer" "${args[@]}"
done
launch batch SLURM_JOB_ID=79 SLURM_JOB_NUM_NODES=2 -- -- "$work/trainer" "${args[@]}"
launch step SLURM_JOB_ID=79 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 -- -- "$work/trainer" "${args[@]}"
for number in 0 1 2 3; do
        ends "task-$number" 64
        ends "worker-$number" 64
        says "$work/task-$number.out" 'SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=1 .*--ntasks-per-node=1'
        says "$work/worker-$number.out" "RANK=$number WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 .*--nproc-per-node 1"
done
ends batch 64
ends step 64
says "$work/batch.out" 'SLURM_JOB_NUM_NODES=2, and no SLURM_STEP_NUM_NODES'
says "$work/step.out" 'SLURM_STEP_NUM_NODES=2: several nodes need a place to meet'
[ "$(digest "$CAIRN_STORE")" = "$before" ] || die "a refused start changed the store"
ok "one process a rank, a batch script on one of two nodes, no place to meet: 64, the variables are named"
