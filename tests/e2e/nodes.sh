#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# Several nodes, each with an agent of its own, that meet in the shared store (here: on one machine): they form a
# group, cut and commit together; a node is killed, stopped, comes back late.
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"

declare -A node_pid
# node NAME [options]: `cairn run` of one node, with a runtime directory of its own.
node() {
        local name=$1
        shift
        mkdir -p -m 700 "$work/run-$name"
        XDG_RUNTIME_DIR=$work/run-$name "$cairn" run --run job --rdzv dir --nnodes 2:3 --nproc-per-node 2 \
                --node "$name" --address 127.0.0.1 --every 25steps "$@" -- \
                "$lockstep" "$work/barrier" "$work/log" --steps 100000 >>"$work/$name.out" 2>&1 &
        node_pid[$name]=$!
}
on() { # NAME: sets $there, the prefix of a command as if typed on that node
        there=(env XDG_RUNTIME_DIR="$work/run-$1" "$cairn")
}
last() { # field of the newest log line
        tail -n 1 "$work/log" 2>/dev/null | cut -d' ' -f"$1"
}
reached() { # generation, world, step
        [ "$(last 1)" = "$1" ] && [ "$(last 2)" = "$2" ] && [ "$(last 3)" -ge "$3" ]
}

node a
node b
wait_for 100 reached 1 4 60
for name in a b; do
        on "$name"
        try 0 'step [0-9]+' "${there[@]}" snapshot job --wait --timeout 60
done
try 0 '✓' "$cairn" verify job
ok "two nodes form a group of four ranks; each commits a demanded cut of all"

# A third one waits; when a node is lost all three states are at hand: killed with all that it ran.
node c
wait_for 100 has_joined "$CAIRN_STORE/job" c
before=$(newest_step_of job)
"$helpers/process" "${node_pid[b]}" kill-tree
started=$(now_ms)
wait_for 100 reached 2 4 $((before + 1))
took=$(($(now_ms) - started))
[ "$took" -lt 14000 ] || die "the new group took $took ms"
try 0 '✓' "$cairn" verify job
ok "a node is killed: the others and one that waited go on from step $before or later, after $took ms"

# The leader's machine hangs: the others go on without it, and when it wakes up it is refused.
freeze() { # NAME, STOP or CONT: `cairn run` and all below it
        local pid
        for pid in ${node_pid[$1]} $("$helpers/process" "${node_pid[$1]}" all); do
                kill "-$2" "$pid" 2>/dev/null || true
        done
}
node d
wait_for 100 has_joined "$CAIRN_STORE/job" d
before=$(newest_step_of job)
freeze a STOP
started=$(now_ms)
wait_for 100 reached 3 4 $((before + 1))
took=$(($(now_ms) - started))
[ "$took" -lt 16000 ] || die "the new group took $took ms"
ok "the leader's node hangs: the others go on from step $before or later, after $took ms"
freeze a CONT
woken=$(last 3)
wait_for 100 grep -Eq 'start again with the others' "$work/a.out"
wait_for 100 reached 3 4 $((woken + 60))
# What it had written whole when it hung was committed by the next group, which began from there.
before=$(sed -n 's/.*resumes step \([0-9]*\) .*/\1/p' "$work/d.out" | tail -n 1)
for name in $("$cairn" list job --json | json 'checkpoints.*.checkpoint' | tr -d '"' |
        grep -E '^[0-9]{12}-g0002$'); do
        step=${name%%-*}
        [ "$((10#$step))" -le "$before" ] || die "$name is of a node that was given up"
done
try 0 '✓' "$cairn" verify job
ok "it wakes up late and is refused: nothing of it is in a checkpoint, the others are not held up"

# An orderly end, asked for on one node, ends all of them after one last checkpoint.
on d
try 0 'step' "${there[@]}" stop job --deadline 100
for name in c d; do
        runner=${node_pid[$name]}
        finish 100
done
ok "cairn stop on one node stops the run on all"

# One that waits for others ends at once when it is told to.
node e
wait_for 100 has_joined "$CAIRN_STORE/job" e
runner=${node_pid[e]}
kill -TERM "$runner"
finish 100
expect_code 75
ok "a node that waits for others ends when it is asked to"
