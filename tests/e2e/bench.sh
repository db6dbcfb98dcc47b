#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# bench: each kind runs, says what people and programs read, and leaves nothing. Speeds are not judged here.
. "$(dirname "$0")/lib.sh"
mkdir "$work/disk"
# What waited at each of its looks, once in a MiB, would take 19 s longer than the disk does, each time; what others do
# on the machine does not last for all of four tries.
is_patient() { # what
        local try began patience_s
        for try in 1 2 3 4; do
                began=$(now_ms)
                dd if=/dev/zero of="$work/plain" bs=1M count=191 conv=fsync status=none
                patience_s=$((5 + 5 * ($(now_ms) - began) / 1000))
                rm "$work/plain"
                [ "$try" -eq 1 ] || "$cairn" bench "$1" --dir "$work/disk" --bytes 200000000 --json >"$work/json" || die "$1 --json"
                [ "$(json seconds <"$work/json" | cut -d. -f1)" -gt "$patience_s" ] || return 0
        done
        die "$1 waits: $(cat "$work/json")"
}
for what in write read snapshot; do
        try 0 "^$what: [0-9.]+ GB/s, 8388608 bytes" "$cairn" bench "$what" --dir "$work/disk" --bytes 8M
        "$cairn" bench "$what" --dir "$work/disk" --bytes 200000000 --json >"$work/json" || die "$what --json"
        grep -Eq "^$what 199999488 (io_uring|threads|pull) (true|false)$" \
                <<<"$(json 'what&bytes&backend&direct' <"$work/json")" || die "$what --json: $(cat "$work/json")"
        [ "$(json bytes_per_second <"$work/json" | cut -d. -f1)" -gt 0 ] || die "$what --json: no rate"
        is_patient "$what"
        [ -z "$(ls -A "$work/disk")" ] || die "bench $what left something"
done
ok "write, read and snapshot, text and JSON"
for what in write read; do
        "$cairn" bench "$what" --dir "$work/disk" --bytes 8M --keep kept >"$work/out" || die "$what --keep"
        [ "$(ls -A "$work/disk")" = kept ] || die "$what --keep: $(ls -A "$work/disk")"
        [ "$(stat -c %s "$work/disk/kept")" -ge 8388608 ] || die "$what --keep: $(stat -c %s "$work/disk/kept") bytes"
        cp "$work/disk/kept" "$work/before"
        try 73 '^cairn bench: .*disk/kept: File exists' "$cairn" bench "$what" --dir "$work/disk" --bytes 1M --keep kept
        cmp "$work/before" "$work/disk/kept" || die "$what --keep wrote over a file"
        rm "$work/disk/kept"
done
ok "a data file that is kept, and not over another"
try 64 'what\?' "$cairn" bench
try 64 '^cairn bench: .*write, read or snapshot' "$cairn" bench erase --bytes 1M
try 64 "^cairn bench: .*a size like .*, not '5Q'" "$cairn" bench write --bytes 5Q
try 64 '^cairn bench: .*from 1M to 256G' "$cairn" bench write --bytes 1K
try 64 '^cairn bench: .*snapshot writes no file' "$cairn" bench snapshot --bytes 1M --keep kept
try 64 "^cairn bench: .*name of a file in --dir, not '../kept'" "$cairn" bench write --bytes 1M --keep ../kept
try 66 '^cairn bench: .*no-such' "$cairn" bench write --dir "$work/no-such" --bytes 1M
try 64 '^cairnd: .*write, read or snapshot' "$BUILD/cairnd" --bench erase --dir "$work/disk" --bytes 1M
ok "refusals"
