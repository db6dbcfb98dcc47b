#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 2400 s
#
# The newest checkpoint is replaced ROUNDS times (1000), each time deleting the former, while others read (B42):
# list, verify, inspect and a start with its weights see the old or the new one, or say that it was pruned while
# they read; never a damaged one. In the middle every read fails as it does on a network file system whose server
# was restarted, and for a while every call hangs: the agent answers all the time.
mounts=optional
. "$(dirname "$0")/mounts.sh"
rounds=${ROUNDS:-1000}
if mount_passfs; then
        CAIRN_STORE=$mounted/store
else
        echo "not shown: stale handles and a hang in the middle: $why"
fi

start demo --every 1steps --keep-last 1 -- "${tiny[@]}" --steps 1000000 --step-ms 2
wait_step "$work/demo.log" 5 60
pid_of trainer
trainer=$pid
replaced() {
        "$cairn" status demo --json | json runs.0.checkpoints
}
has_replaced() {
        [ "$(replaced)" -ge "$1" ]
}
wait_for 60 has_replaced 3
read_count=0 pruned=0 stale=0
# Each reader: 0, or one of the sentences that are right while somebody replaces.
reader() { # what, command...
        local what=$1 status=0
        shift
        "$@" >"$work/read.log" 2>&1 || status=$?
        read_count=$((read_count + 1))
        [ "$status" -eq 0 ] && return
        if grep -Eq 'pruned while|was pruned|is no checkpoint: it has no COMMIT' "$work/read.log"; then
                pruned=$((pruned + 1))
        elif grep -q 'Stale file handle' "$work/read.log"; then
                stale=$((stale + 1))
        else
                die "$what ended with $status while checkpoints were replaced: $(cat "$work/read.log")"
        fi
}
began=$(now_ms)
half=''
until [ "$(replaced)" -ge "$rounds" ]; do
        [ $(($(now_ms) - began)) -lt 2300000 ] || die "only $(replaced) checkpoints"
        reader list "$cairn" list demo --json
        reader verify "$cairn" verify demo
        reader inspect "$cairn" inspect demo --tensors
        reader "a warm start" "$cairn" run --run "warm$read_count" --init-from demo --every 10m --max-restarts 0 -- \
                "${tiny[@]}" --steps 1 --log "$work/warm.log"
        rm -f "$work/warm.log"
        if [ -n "$passfs" ] && [ -z "$half" ] && [ "$(replaced)" -ge $((rounds / 2)) ]; then
                half=$(replaced)
                weather read=ESTALE
                for _ in 1 2 3 4 5; do
                        reader verify "$cairn" verify demo
                        reader list "$cairn" list demo --json
                done
                weather hang
                for _ in 1 2 3 4 5; do
                        asked=$(now_ms)
                        try 0 'committed' "$cairn" status demo
                        [ $(($(now_ms) - asked)) -lt 20000 ] || die "cairn status took $(($(now_ms) - asked)) ms"
                done
                weather
        fi
done
count=$(replaced)
[ "$(pids_of trainer)" = "$trainer" ] || die "the trainer was started again"
"$cairn" stop demo >/dev/null || die "cairn stop failed"
finish 60
expect_code 0
try 0 '✓' "$cairn" verify demo
[ "$(find "${back:-$work}/store/demo" -maxdepth 1 -name '0*-g*' | wc -l)" -le 2 ] || die "former checkpoints are left"
[ "$stale" -gt 0 ] || [ -z "$passfs" ] || die "no reader met a stale handle"
[ $((pruned + stale)) -lt "$read_count" ] || die "no reader ever succeeded"
ok "B42 replaced $count times, read $read_count times: $pruned times pruned meanwhile, $stale stale handles, never a damaged one"
echo "NOT SHOWN: B42 on NFS itself: stale handles come from the pass-through"
