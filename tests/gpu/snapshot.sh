#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# 16 GiB of GPU memory: snapshots, beside updates too, committed, then restored in a new process and compared; less
# where GPU, memory or disk do not have that, which the figure `bytes` says.
. "$(dirname "$0")/lib.sh"
steps=$BUNDLE/steps

bytes=$("$steps/snapshot" "$(choose $((16 << 30)) $((16 << 20)))" fit) || fail "$bytes"
available() { # bytes of memory and of the disk, whichever is less for what is stored there
        local memory disk
        memory=$(awk '$1 == "MemAvailable:" { print $2 * 1024 }' /proc/meminfo)
        disk=$(df --output=avail -B1 "$TMPDIR" | tail -n 1)
        [ "$(stat -f -c %T "$TMPDIR")" != tmpfs ] || memory=$((memory / 4))
        echo $((memory * 2 / 3 < disk / 3 ? memory * 2 / 3 : disk / 3))
}
# What the disk takes in a second; two checkpoints have to be written and one read.
if [ -z "$brief" ]; then
        begin=${EPOCHREALTIME/[.,]/}
        dd if=/dev/zero of="$TMPDIR/rate" bs=16M count=32 oflag=direct conv=fsync status=none 2>/dev/null ||
                dd if=/dev/zero of="$TMPDIR/rate" bs=16M count=32 conv=fsync status=none
        rate=$((512 * 1048576 / ((${EPOCHREALTIME/[.,]/} - begin) / 1000 + 1) * 1000))
        rm -f "$TMPDIR/rate"
        figure disk_rate "$(awk -v r="$rate" 'BEGIN { print r * 1e-9 }')" GB/s
else
        rate=$((1 << 40))
fi
while [ "$bytes" -gt $((1 << 20)) ] && { [ "$bytes" -gt "$(available)" ] || [ $((bytes * 4)) -gt $((rate * 80)) ]; }; do
        bytes=$((bytes / 2))
done
figure bytes "$bytes" B

start() { # mode, what
        local status=0
        "$cairn" run --run snapshot --mode "$1" --keep-last 1 --every 10000steps --max-restarts 0 -- \
                "$steps/snapshot" "$bytes" "$2" >"$TMPDIR/out" 2>&1 || status=$?
        cat "$TMPDIR/out"
        [ "$status" -eq 0 ] || fail "$2: exit status $status: $(tail -n 1 "$TMPDIR/out")"
}
start fresh save
start resume restore
"$cairn" verify snapshot || fail "the checkpoint does not verify"
