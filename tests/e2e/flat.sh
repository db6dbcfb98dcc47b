#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 180 s
#
# Snapshots back to back, every third failing (B30): memory, descriptors, threads and disk of trainer, agent,
# saver and store process stay where they were after the first fifth, within 2 %. ROUNDS as
# `make check-flat ROUNDS=500` passes it.
. "$(dirname "$0")/mounts.sh"

rounds=${ROUNDS:-60}
mount_passfs
CAIRN_STORE=$mounted/store
start demo -- "${tiny[@]}" --steps 100000000 --step-ms 1 --width 64 --context 32
wait_step "$work/demo.log" 20 20
kinds='trainer agent saver store'

# What the process holds on the disk, deleted files that are still open included: bytes.
held_by() { # pid
        local file bytes=0 target
        for file in "/proc/$1/fd"/*; do
                target=$(readlink "$file" 2>/dev/null) || continue
                case $target in
                "$mounted"/*"(deleted)") bytes=$((bytes + $(stat -L -c '%b * 512' "$file" 2>/dev/null || echo 0))) ;;
                esac
        done
        echo "$bytes"
}
# One line a sample: kilobytes, descriptors and threads of each process, kilobytes on the disk.
sample() {
        local kind line='' disk
        # What is pruned meanwhile is counted or not.
        disk=$({ du -sk "$back/store" 2>/dev/null || true; } | cut -f1)
        for kind in $kinds; do
                pid=$(pids_of "$kind" | head -n 1)
                [ -n "$pid" ] || die "there is no $kind process"
                line+="$(awk '/^Rss:/ { print $2 }' "/proc/$pid/smaps_rollup") "
                line+="$(find "/proc/$pid/fd" -mindepth 1 -maxdepth 1 | wc -l) "
                line+="$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l) "
                disk=$((disk + $(held_by "$pid") / 1024))
        done
        echo "$line$disk" >>"$work/samples"
}

failed=0
for ((round = 1; round <= rounds; round++)); do
        if [ $((round % 3)) -eq 0 ]; then
                weather write=EIO on=.data
                try 74 'Input/output error' "$cairn" snapshot demo --wait --timeout 20
                failed=$((failed + 1))
                weather
        else
                try 0 'step' "$cairn" snapshot demo --wait --timeout 20
        fi
        [ $((round % ${EVERY:-$((rounds < 200 ? 3 : 10))})) -ne 0 ] || sample
done
[ "$("$cairn" status demo --json | json runs.0.attempts_failed)" -ge "$failed" ] ||
        die "fewer than $failed attempts failed"

# The median of the second fifth beside that of the last: what grows all the time shows there.
awk -v kinds="$kinds" '
        { for (i = 1; i <= NF; i++) value[NR, i] = $i; fields = NF }
        function median(from, to, column,    n, i, j, t, a) {
                for (i = from; i <= to; i++) a[++n] = value[i, column]
                for (i = 2; i <= n; i++)
                        for (j = i; j > 1 && a[j] < a[j - 1]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
                return a[int((n + 1) / 2)]
        }
        END {
                if (NR < 15) { print "only " NR " samples"; exit 1 }
                split(kinds, name, " ")
                split("kilobytes descriptors threads", what, " ")
                for (column = 1; column <= fields; column++) {
                        label = column == fields ? "kilobytes on the disk" \
                                : name[int((column - 1) / 3) + 1] ": " what[(column - 1) % 3 + 1]
                        first = median(int(NR / 5) + 1, int(2 * NR / 5), column)
                        last = median(NR - int(NR / 5) + 1, NR, column)
                        printf "%-28s %8d -> %8d\n", label, first, last
                        if (last > first * 1.02) { grown = grown " " label ";" }
                }
                if (grown != "") { print "grew by more than 2 %:" grown; exit 1 }
        }' "$work/samples" >"$work/table" || die "$(cat "$work/table")"
cat "$work/table"
try 0 '✓' "$cairn" verify demo --store "$back/store"
ok "B30 $rounds snapshots, $failed of them failing: nothing grows"
