#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 7200 s
#
# Tensors one at a time: around the edges of blocks, chunks, requests and registered buffers, and beyond what 31 and
# 32 bits count (B10), with the ring and without: every byte comes back in a new process, and no process holds more
# than the state and its staging. `make check-large` runs it, for it takes minutes, some 15 GB of memory and 7 of disk.
. "$(dirname "$0")/lib.sh"
zoo=$helpers/zoo
[ -x "$zoo" ] || skip "$zoo is not built"
memory_gib=$(($(sed -n 's/^MemAvailable:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/meminfo) >> 20))
disk_gib=$(($(stat -f -c '%a * %S' "$work") >> 30))

# Saved, killed, restored, compared.
two_lives() { # bytes, type, elements, prefix...
        local bytes=$1 type=$2 count=$3 limit=$(($(now_ms) + 1800000)) image
        shift 3
        peak=()
        output=$work/large.out
        "$@" "$cairn" run --run large --every 10m -- "$zoo" "large:$type:$count" --steps 1 --save-at 1 --die-at 1 >"$output" 2>&1 &
        runner=$!
        while kill -0 "$runner" 2>/dev/null; do
                [ "$(now_ms)" -lt "$limit" ] || die "$bytes bytes are not through after 1800 s"
                note_peaks
                sleep 0.05
        done
        finish 1
        expect_code 0
        says "$output" 'restart 1 from step 1'
        [ "$("$cairn" inspect large@1 --json | json tensor_bytes)" = "$bytes" ] || die "not $bytes bytes"
        image=$(stat -c %s "$CAIRN_STORE"/large/000000000001-g0001/rank-00000.data)
        [ "$image" -eq $(((4096 + bytes + 4095) / 4096 * 4096)) ] || die "the file has $image bytes for $bytes"
        rm -rf "$CAIRN_STORE/large"
}
few=0
edge() { # bytes
        two_lives "$1" u8 "$1"
        few=$((few + 1))
}
lives() { # what, type, elements, prefix...
        local what=$1 type=$2 count=$3 began=$(now_ms) bytes size kind
        shift 3
        case $type in u8) size=1 ;; bf16) size=2 ;; f32) size=4 ;; esac
        bytes=$((count * size))
        if [ "$memory_gib" -lt $((2 * (bytes >> 30) + 3)) ] || [ "$disk_gib" -lt $(((bytes >> 30) + 2)) ]; then
                echo "NOT SHOWN: $what of $bytes bytes: $memory_gib GiB of memory and $disk_gib GiB of disk are free"
                missing=1
                return 0
        fi
        two_lives "$bytes" "$type" "$count" "$@"
        # The trainer and the saver see the state and staging; the others hold none of it.
        for kind in trainer saver; do
                expect_peak "$kind" $((2 * (bytes >> 10) + 32768))
        done
        for kind in agent store; do
                expect_peak "$kind" 32768
        done
        ok "B10 $what: $count elements, $bytes bytes, exact, in $((($(now_ms) - began) / 1000)) s;" \
                "trainer $((peak[trainer] >> 10)) MiB, saver $((peak[saver] >> 10)) MiB at the most"
}
missing=0
for bytes in 1 255 256 257 511 512 513 4095 4096 4097; do
        edge "$bytes"
done
# Chunks of 1 MiB, requests of 2, parts of 16 and 64 MiB, counted from the tensor or from the file's begin.
for mib in 1 2 16 64; do
        for from in 0 4096; do
                for more in -1 0 1; do
                        edge $((mib * 1048576 - from + more))
                done
        done
done
ok "B38 $few sizes from 1 byte to 64 MiB + 1, one at a time: exact, and the files end where they should"
lives "u8, a registered buffer's limit" u8 $((1073741824 - 4096 + 1))
lives "bf16, more than 2^31 elements" bf16 2147483653
lives "f32, 600 million elements" f32 600000000
lives "u8, more than 2^32 elements" u8 4294967297
if "$helpers/deny_ring" true 2>/dev/null; then
        lives "u8 without the ring" u8 4294967297 "$helpers/deny_ring"
        lives "bf16 without the ring" bf16 2147483653 "$helpers/deny_ring"
else
        echo "NOT SHOWN: without the ring: seccomp filters cannot be installed here"
        missing=1
fi
lives "u8, 6 GiB" u8 6442450944
[ "$missing" -eq 0 ] || skip "not all of it could be shown here"
