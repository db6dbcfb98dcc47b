#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# doctor: a line a probe; the exit status says whether the machine (1) or the store (69) is unusable; it
# leaves nothing behind.
. "$(dirname "$0")/lib.sh"
"$cairn" init "$CAIRN_STORE" >"$work/init.out" 2>&1 || die "cairn init failed"
before=$(digest "$CAIRN_STORE")
try 0 '^✓ store .*with its marker' "$cairn" doctor
for probe in kernel io_uring memfd 'huge pages' pidfd openat2 memory 'open files' agent 'NVIDIA driver' \
        'file system' 'free space' writable fsync fallocate O_DIRECT; do
        grep -Eq "^(✓|!) $probe +[^ ]" <<<"$said" || die "nothing about $probe: $said"
done
grep -q '^✗' <<<"$said" && die "something is unusable, but exit status 0: $said"
[ "$(digest "$CAIRN_STORE")" = "$before" ] || die "doctor left something in the store"
[ -z "$(ls -A "$XDG_RUNTIME_DIR")" ] || die "doctor left something in the runtime directory"
"$cairn" doctor "$CAIRN_STORE" --json >"$work/json" || die "--json: exit status $?"
[ "$(json good <"$work/json")" = true ] || die "--json: good"
[ "$(json 'probes.#' <"$work/json")" -ge 16 ] || die "--json: probes"
ok "a line a probe, text and JSON, nothing left behind"

try 69 '^✗ store .*no-store: No such file' "$cairn" doctor "$work/no-store"
try 69 '^✗ store .*Not a directory' "$cairn" doctor "$work/text"
try 69 '^✗ store .*CAIRN-STORE' "$cairn" doctor "$work"
[ "$({ "$cairn" doctor "$work/no-store" --json || true; } | json good)" = false ] || die "--json of a missing store"
mkdir "$work/empty"
try 0 '^! store .*empty' "$cairn" doctor "$work/empty"
[ -z "$(ls -A "$work/empty")" ] || die "doctor left something in an empty folder"
(cd "$work/empty" && unset CAIRN_STORE && try 0 '^! store .*does not exist yet' "$cairn" doctor)
if [ -w /dev/shm ]; then
        mkdir "/dev/shm/${work##*/}"
        "$cairn" doctor "/dev/shm/${work##*/}" >"$work/shm.out" 2>&1 || true
        rmdir "/dev/shm/${work##*/}"
        says "$work/shm.out" '^! file system +(tmpfs|ramfs) → it is memory'
fi
ok "missing, foreign and empty stores are told apart"

# cairn alone, without its agent: the machine is what is wrong.
mkdir "$work/alone"
cp "$cairn" "$work/alone/"
try 1 '^✗ cairnd ' env PATH=/nowhere "$work/alone/cairn" doctor "$CAIRN_STORE"
try 1 '^✗ agent ' env CAIRN_SOCKET="$work/none.sock" "$cairn" doctor "$CAIRN_STORE"
ok "a missing agent is named, with a remedy"
if [ "$(id -u)" -ne 0 ]; then
        chmod 500 "$CAIRN_STORE"
        try 69 '^✗ writable' "$cairn" doctor "$CAIRN_STORE"
        chmod 700 "$CAIRN_STORE"
        ok "a store that may not be written"
fi
