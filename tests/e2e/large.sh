#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 1800 s
#
# Tensors beyond what 31 and 32 bits count (B10), one at a time, with the ring and without: every byte comes back
# in a new process. `make check-large` runs it, for it takes minutes, some 15 GB of memory and as much disk.
. "$(dirname "$0")/lib.sh"
zoo=$helpers/zoo
[ -x "$zoo" ] || skip "$zoo is not built"
memory_gib=$(($(sed -n 's/^MemAvailable:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/meminfo) >> 20))
disk_gib=$(($(stat -f -c '%a * %S' "$work") >> 30))

lives() { # what, type, elements, prefix...
        local what=$1 type=$2 count=$3 began=$(now_ms) bytes size
        shift 3
        case $type in u8) size=1 ;; bf16) size=2 ;; f32) size=4 ;; esac
        bytes=$((count * size))
        if [ "$memory_gib" -lt $((2 * (bytes >> 30) + 3)) ] || [ "$disk_gib" -lt $(((bytes >> 30) + 2)) ]; then
                echo "NOT SHOWN: $what of $bytes bytes: $memory_gib GiB of memory and $disk_gib GiB of disk are free"
                missing=1
                return 0
        fi
        output=$work/large.out
        "$@" "$cairn" run --run large --every 10m -- "$zoo" "large:$type:$count" --steps 1 --save-at 1 --die-at 1 >"$output" 2>&1 &
        runner=$!
        finish 600
        expect_code 0
        says "$output" 'restart 1 from step 1'
        [ "$("$cairn" inspect large@1 --json | json tensor_bytes)" = "$bytes" ] || die "not $bytes bytes"
        [ "$(stat -c %s "$CAIRN_STORE"/large/000000000001-g0001/rank-00000.data)" -ge "$bytes" ] || die "the file is short"
        ok "B10 $what: $count elements, $bytes bytes, exact, in $((($(now_ms) - began) / 1000)) s"
        rm -rf "$CAIRN_STORE/large"
}
missing=0
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
