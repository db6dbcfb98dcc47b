#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 600 s
#
# Snapshots back to back (B30): what agent, saver, store process, trainer and `cairn run` hold, and what the
# store takes on its disk, files that were deleted and are still open included, stays the same after a warm-up,
# also where every third snapshot fails, of the host and of a GPU. ROUNDS=500 (make check-flat) is the long form.
. "$(dirname "$0")/mounts.sh"

rounds=${ROUNDS:-60}
every=6 # never one that fails
# What the slowest of them needs to have been everywhere once: each way to fail, each buffer.
warm_up=$((rounds / 3))

# One way after the other.
failures=("reserve=ENOSPC" "write=ENOSPC on=.data" "write=EIO on=.data" "sync=EIO" "write=EIO on=.manifest"
        "write=EIO on=INDEX" "write=EDQUOT on=COMMIT" "open=ESTALE" "readonly")

disk_kib() {
        local blocks free size
        read -r blocks free size < <(stat -f -c '%b %f %S' "$disk")
        echo $(((blocks - free) * size / 1024))
}
look() {
        "$helpers/usage" "$runner" >"$work/usage" || die "a process ended meanwhile"
        counts=$(awk '{ print $1, $4, $5 }' "$work/usage" | sort)
        kib=$(disk_kib)
}
# What all others are compared with has nothing that is about to go: it has been the same for a second.
settle() {
        local same=0 before=''
        sleep 1
        for _ in {1..100}; do
                look
                [ "$before" = "$counts $kib" ] && same=$((same + 1)) || same=0
                [ "$same" -lt 5 ] || return 0
                before="$counts $kib"
                sleep 0.2
        done
        die "it does not come to rest: $counts"
}
# What is pruned or discarded goes a little after the commit, and a saver that has no turn yet has not taken
# the next files: a moment for what it was to come back. A leak does not go.
sample() { # round
        local pause kib counts
        if [ "$1" -ge "$warm_up" ] && [ -z "$settled" ]; then
                settle
                settled=$counts settled_kib=$kib
        fi
        for pause in 0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1 2 4 8; do
                sleep "$pause"
                look
                [ -n "$settled" ] && { [ "$counts" != "$settled" ] || [ "$kib" -gt "$settled_kib" ]; } || break
        done
        sed "s/^/$1 /" "$work/usage" >>"$work/samples"
        echo "$1 disk 0 $kib 0 0 0" >>"$work/samples"
}
# Each number's smallest and largest after the warm-up; a process that was replaced would hide its leak.
judge() { # what, samples
        awk -v from="$warm_up" -v what="$1" '
                BEGIN { split("resident descriptors threads memory-files", name, " ") }
                $2 in pid && pid[$2] != $3 { print what ": the " $2 " is another process"; bad = 1 }
                { pid[$2] = $3 }
                $1 >= from {
                        for (i = 4; i <= ($2 == "disk" ? 4 : 7); i++) {
                                key = $2 " " ($2 == "disk" ? "KiB" : name[i - 3])
                                if (!(key in low) || $i < low[key]) low[key] = $i
                                if ($i > high[key]) high[key] = $i
                        }
                        samples += $2 == "agent"
                }
                END {
                        if (samples < 5) { print what ": only " samples + 0 " samples"; exit 1 }
                        for (key in low) {
                                if (high[key] > 0) line = line sprintf(", %s %d-%d", key, low[key], high[key])
                                if (high[key] > low[key] * 1.02) {
                                        print what ": " key " from " low[key] " to " high[key]; bad = 1
                                }
                        }
                        print what ": " samples " samples" line > "/dev/stderr"
                        exit bad
                }' "$2" 2>"$work/flat"
}
# The trainer is large enough for its buffers to be seen, and does not wait for anybody.
wide=("$train" --data "$work/text" --layers 1 --heads 2 --width 64 --context 16 --batch 2 --quiet)

snapshots() { # run, whether every third fails
        local i status verdict failed=0 committed=0
        settled='' settled_kib=0
        : >"$work/samples"
        start "$1" --every 10m --keep-last 3 -- "${trainer[@]}" --steps 100000000
        wait_step "$work/$1.log" 2 100
        for ((i = 1; i <= rounds; i++)); do
                status=0
                [ "$2" -eq 0 ] || [ $((i % 3)) -ne 0 ] || weather "${failures[i / 3 % ${#failures[@]}]}"
                "$cairn" snapshot "$1" --wait --timeout 100 >"$work/snapshot.log" 2>&1 || status=$?
                if [ "$status" -eq 0 ]; then
                        committed=$((committed + 1))
                else
                        failed=$((failed + 1))
                        [ "$2" -ne 0 ] && [ $((i % 3)) -eq 0 ] || die "round $i failed: $(cat "$work/snapshot.log")"
                fi
                [ "$2" -eq 0 ] || weather
                [ $((i % every)) -ne 1 ] || sample "$i"
        done
        [ "$failed" -eq $(($2 ? rounds / 3 : 0)) ] || die "$failed of $rounds failed: $(cat "$work/snapshot.log")"
        verdict=$(judge "$1" "$work/samples") || die "${verdict//$'\n'/; }"$'\n'"$(sort -s -k2,2 "$work/samples")"
        cat "$work/flat"
        kill -INT "$runner"
        finish 100
        try 0 '' "$cairn" verify "$1"
        ok "B30 $1: $committed of $rounds snapshots committed, $failed failed: memory, descriptors, threads, disk flat"
}

mount_image ext4 64 || mount_tmpfs 64m
disk=$mounted
CAIRN_STORE=$mounted/store
trainer=("${wide[@]}")
snapshots back-to-back 0

mount_tmpfs 64m
disk=$mounted
mount_passfs "$mounted" || skip "$why"
CAIRN_STORE=$mounted/store
snapshots every-third-fails 1

# The trainer copies, from the emulated driver's GPU: chunks, events and staging, mapped and page-locked once.
export CAIRN_LIBCUDA=$BUILD/tests/cuda/libcuda-emu.so
trainer=("$helpers/gpu_trainer" --log "$work/gpu-every-third-fails.log" --values 30000 --step-ms 2)
snapshots gpu-every-third-fails 1
says "$output" 'gpu_trainer: 2 registrations, 1 events, 3 streams of the GPU at the end'

# One descriptor, one page in fifty or one process more: the judge has to notice.
notices() { # what, awk program that changes a line of the last samples
        awk -v last="$(tail -n 1 "$work/samples" | cut -d' ' -f1)" "\$1 == last && $2; { print }" \
                "$work/samples" >"$work/planted"
        ! judge planted "$work/planted" >"$work/said" || die "not noticed: $1"
}
notices "a descriptor" '$2 == "store" { $5++ }'
notices "memory" '$2 == "agent" { $4 = int($4 * 1.021 + 1) }'
notices "disk space" '$2 == "disk" { $4 = int($4 * 1.021 + 1) }'
notices "another process" '$2 == "saver" { $3++ }'
ok "planted growth is noticed"
