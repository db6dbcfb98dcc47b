#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 120 s
#
# A rank ends with a status after which no other start can do better: no node of the group waits for the one that it
# ran on; all end with that status, and say whose it was and what it means.
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
node() { # NAME RUN
        mkdir -p -m 700 "$work/run-$1"
        XDG_RUNTIME_DIR=$work/run-$1 LOG=$work/$2.log "$cairn" run --run "$2" --rdzv dir --nnodes 3:3 \
                --nproc-per-node 2 --node "$1" --address 127.0.0.1 --every 10steps -- "$work/trainer" \
                "$lockstep" "$work/barrier-$2" "$work/$2.log" --steps 100000 >>"$work/$2-$1.out" 2>&1 &
        node_pid[$1]=$!
}
# group RUN CULPRIT STATUS NODE MEANING: all end with the status, long before they would have given up waiting;
# those that it is news for say whose it was.
group() {
        local name
        export CULPRIT=$2 STATUS=$3
        for name in a b c; do
                node "$name" "$1"
        done
        for name in a b c; do
                runner=${node_pid[$name]}
                finish 50
                [ "$code" -eq "$3" ] || die "node $name ended with $code, not with $3"
                [ "$name" = "$4" ] || says "$work/$1-$name.out" \
                        "rank $2 ended with status $3 on node $4: $5; .* ends with status $3"
        done
        never_says "$work/$1-a.out" 'restart [12]'
}
group refused 5 78 c 'its settings do not fit'
ok "a rank of a node that does not lead ends with 78: so do all nodes, and name it"
group damaged 0 65 a 'its data or checkpoint is damaged or does not fit'
ok "a rank of the leader's node ends with 65: so do all nodes"
