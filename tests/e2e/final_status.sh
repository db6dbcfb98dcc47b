#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# A rank ends with a status after which no other start can do better, or the start of a group is refused with one: no
# node of the group waits for the one that it ran on; all end with that status, and say whose it was and what it means.
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"

# The rank $CULPRIT ends with $STATUS after step 20, the others train on.
cat >"$work/trainer" <<'END'
#!/bin/bash
[ "$RANK" = "$CULPRIT" ] || exec "$@"
"$@" &
trap 'kill -KILL $! 2>/dev/null' EXIT
until [ -s "$LOG" ] && [ "$(tail -n 1 "$LOG" | cut -d' ' -f3)" -ge 20 ]; do sleep 0.05; done
exit "$STATUS"
END
chmod +x "$work/trainer"
declare -A node_pid
steps=100000 slowly=()
node() { # NAME RUN [options]
        local name=$1 run=$2
        shift 2
        mkdir -p -m 700 "$work/run-$name"
        XDG_RUNTIME_DIR=$work/run-$name LOG=$work/$run.log "${slowly[@]}" "$cairn" run --run "$run" --rdzv dir --nnodes 3:3 \
                --nproc-per-node 2 --node "$name" --address 127.0.0.1 --every 10steps "$@" -- "$work/trainer" \
                "$lockstep" "$work/barrier-$run" "$work/$run.log" --steps "$steps" >>"$work/$run-$name.out" 2>&1 &
        node_pid[$name]=$!
}
# all_end RUN STATUS [options]: three nodes start it, and end with the status long before they would give up waiting.
all_end() {
        local name run=$1 status=$2
        shift 2
        for name in a b c; do
                node "$name" "$run" "$@"
        done
        for name in a b c; do
                runner=${node_pid[$name]}
                finish 100
                [ "$code" -eq "$status" ] || die "node $name ended with $code, not with $status"
        done
}
# group RUN CULPRIT STATUS NODE MEANING: all end with the status, long before they would have given up waiting;
# those that it is news for say whose it was.
group() {
        local name
        export CULPRIT=$2 STATUS=$3
        all_end "$1" "$3"
        for name in a b c; do
                [ "$name" = "$4" ] || says "$work/$1-$name.out" \
                        "rank $2 ended with status $3 on node $4: $5; .* ends with status $3"
        done
        never_says "$work/$1-a.out" 'restart [12]'
        [ "$(json 'code&reason' <"$CAIRN_STORE/$1/exit.json")" = "$3 failed" ] ||
                die "$(cat "$CAIRN_STORE/$1/exit.json")"
}
group refused 5 78 c 'its settings do not fit'
says "$work/refused-c.out" "waits for 3 nodes at $CAIRN_STORE/refused/rendezvous"
ok "a rank of a node that does not lead ends with 78: so do all nodes, and name it"
group damaged 0 65 a 'its data or checkpoint is damaged or does not fit'
ok "a rank of the leader's node ends with 65: so do all nodes"

# Before any generation exists: the node that leads is refused, the others would wait for it.
export CULPRIT=none
all_end nothing 66 --mode resume
says "$work/nothing-a.out" 'the run has no checkpoint'
for name in b c; do
        says "$work/nothing-$name.out" 'node a was refused: .*the run has no checkpoint'
done
steps=30
all_end whole 0
all_end whole 66 --mode resume
for name in b c; do
        says "$work/whole-$name.out" 'node a was refused: .*finished'
done
all_end whole 0 --mode auto
for name in a b c; do
        says "$work/whole-$name.out" 'is finished \(completed\); nothing to do'
done
ok "a start that is refused, or finds the run finished, on the node that leads: all hear that, and why"

# On one that does not lead, after the generation was made: its store is a copy, or there is none, and it joins the others
# in a folder beside them.
steps=100000
mkdir "$work/meet"
cp -a "$CAIRN_STORE" "$work/copy"
for store in copy none; do
        for name in a b; do
                node "$name" refused --mode resume --rdzv "dir://$work/meet"
        done
        node c refused --mode resume --rdzv "dir://$work/meet" --store "$work/$store"
        for name in c a b; do
                runner=${node_pid[$name]}
                finish 100
                [ "$code" -eq 78 ] || die "node $name ended with $code, not with 78"
        done
        says "$work/refused-c.out" "waits for 3 nodes at $work/meet/refused/rendezvous"
        says "$work/refused-c.out" "$work/$store: restart [0-9]+ of the run.* is not the store of the other nodes"
        for name in a b; do
                says "$work/refused-$name.out" "node c was refused: .*$work/$store: .*not the store of the other nodes"
        done
done
never_says "$work/refused-c.out" 'goes on'
ok "a node whose store is a copy, or missing: it says so, and the others end with the same status"

# What the leader's folder answers late: the member is refused before the leader knows that it leads.
if strace -f -qq -o /dev/null -e trace=fsync -e inject=fsync:delay_enter=1000 true 2>/dev/null; then
        slowly=(strace -f -qq -o /dev/null -e trace=fsync -e inject=fsync:delay_enter=500000)
        node a late --rdzv "dir://$work/meet"
        slowly=()
        node b late --rdzv "dir://$work/meet"
        node c late --rdzv "dir://$work/meet" --store "$work/none"
        for name in c a b; do
                runner=${node_pid[$name]}
                finish 100
                [ "$code" -eq 78 ] || die "node $name ended with $code, not with 78"
        done
        ok "a node is refused before the leader has its answer: the others end with the same status"
else
        echo "NOT SHOWN: a leader with a slow folder: there is no strace, or it may not delay calls"
fi

# Where the others are enough without it they go on. It is there first: a group of the two would not ask for it.
node c enough --nnodes 2:3 --rdzv "dir://$work/meet" --store "$work/none"
wait_for 100 has_joined "$work/meet/enough" c
for name in a b; do
        node "$name" enough --nnodes 2:3 --rdzv "dir://$work/meet"
done
runner=${node_pid[c]}
finish 100
expect_code 78
has_world() { # RUN RANKS
        [ "$(tail -n 1 "$work/$1.log" 2>/dev/null | cut -d' ' -f2)" = "$2" ]
}
wait_for 100 has_world enough 4
try 0 'step' env XDG_RUNTIME_DIR="$work/run-a" "$cairn" stop enough --deadline 100
for name in a b; do
        runner=${node_pid[$name]}
        finish 100
        expect_code 0
done
ok "a node that is refused in a run that is elastic: the others go on without it"
