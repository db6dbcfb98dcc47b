#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# prune, pin and unpin: of a run at rest through a private agent, of a running one through its own. The
# newest, a pinned one and a parent stay; --dry-run changes nothing; no agent and no file is left.
. "$(dirname "$0")/lib.sh"
kept() {
        steps_of "$1" | tr '\n' ' '
}
active() {
        "$cairn" status "$1" 2>/dev/null | holds ', active, '
}
has() { # run, step
        steps_of "$1" | holds -x "$2"
}
# Steps so slow that none is scheduled while the one before is written, on a busy machine or a slow disk, too.
run old --every 10steps --keep-last 100 -- "${tiny[@]}" --steps 60 --step-ms 200 --stop-at 50
[ "$(kept old)" = "10 20 30 40 50 " ] || die "kept $(kept old)"

before=$(digest "$CAIRN_STORE")
try 0 '^would be deleted +000000000010-g0001' "$cairn" prune old --keep-last 1 --dry-run
grep -q '^4 checkpoints of run .old. would be deleted' <<<"$said" || die "$said"
[ "$(digest "$CAIRN_STORE")" = "$before" ] || die "--dry-run changed the store"
ok "prune --dry-run lists and changes nothing"

try 0 'is pinned' "$cairn" pin old@10
try 0 '^3 checkpoints of run .old. would' "$cairn" prune old --keep-last 1 --dry-run
try 0 '^1 checkpoint of run .old. deleted' "$cairn" prune old --keep-last 2 --keep-every 20
[ "$(kept old)" = "10 20 40 50 " ] || die "kept $(kept old), not 10 20 40 50"
ok "prune keeps the last, the pinned and every 20th"
"$cairn" list old --json | json 'checkpoints.*.step&pinned' | holds '^10 true' || die "10 is not shown as pinned"
try 0 'is not pinned' "$cairn" unpin old@10
try 0 '^3 checkpoints' "$cairn" prune old --keep-last 1
[ "$(kept old)" = "50 " ] || die "kept $(kept old), not 50"
try 0 '^nothing to delete' "$cairn" prune old --keep-last 1
ok "unpinned ones go; the last one stays"
[ -z "$(find "$CAIRN_STORE" -name '.trash-*' -o -name '.tmp-*')" ] || die "something was left in the store"
[ -z "$(find "$XDG_RUNTIME_DIR" -name '*.sock')" ] || die "a socket was left"

# Its parent is needed by a run that went on; its own agent does the work.
run busy --every 10steps --keep-last 100 -- "${tiny[@]}" --steps 400 --step-ms 200 --stop-at 30
start busy --mode resume --every 10steps --keep-last 100 -- "${tiny[@]}" --steps 400 --step-ms 200 --stall-step 56 --stall-ms 200000
wait_step "$work/busy.log" 55 60
wait_for 60 has busy 50
try 0 'is pinned' "$cairn" pin busy@10
try 0 'deleted' "$cairn" prune busy --keep-last 1
[ "$(kept busy)" = "10 30 50 " ] || die "kept $(kept busy), not 10 30 50"
try 0 'committed +step 50' "$cairn" status busy
ok "prune and pin of a running run: its parent stays, it goes on"
kill_all

try 64 'keep-last' "$cairn" prune old
try 64 'keep-last' "$cairn" prune old --keep-last 0
try 64 'keep-every' "$cairn" prune old --keep-last 1 --keep-every 0
try 66 'nobody' "$cairn" prune nobody --keep-last 1
try 66 'no such checkpoint' "$cairn" pin old@10
try 64 'which checkpoint' "$cairn" unpin
# Another `cairn run` of that run holds its lock, in another runtime directory: two agents never change one run.
start busy --mode resume -- "${tiny[@]}" --steps 400 --step-ms 8 --stall-step 56 --stall-ms 200000
wait_for 60 active busy # the log holds the step from before
mkdir -m 700 "$work/other"
try 73 'busy' env XDG_RUNTIME_DIR="$work/other" "$cairn" prune busy --keep-last 1
kill_all
ok "refusals name the reason"
