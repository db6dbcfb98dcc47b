#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Very many small tensors (B66), a tenth of them step counters: every one comes back exactly, the number of files
# and descriptors stays what it is for one tensor, each process's memory stays within a formula, and ten times the
# tensors do not take more than some ten times the processor time. MANY=1000000 (make check-large) is the long form.
. "$(dirname "$0")/lib.sh"
zoo=$helpers/zoo
[ -x "$zoo" ] || skip "$zoo is not built"
most=${MANY:-100000}

# Of each kind of process: KiB at the most, from the tensors and the image's KiB. The trainer holds the state and,
# while it restores, staging; the saver has both mapped; a record with its name is some 0.3 KiB wherever it is
# unpacked, and the trainer of this test keeps 0.2 KiB of its own.
bound() { # kind, tensors, image KiB
        case $1 in
        trainer) echo $((16384 + 2 * $3 + $2 * 5 / 4)) ;;
        saver) echo $((16384 + 2 * $3 + $2 * 3 / 4)) ;;
        store) echo $((16384 + $2)) ;;
        agent) echo $((16384 + $2 / 16)) ;;
        esac
}
few_descriptors() {
        local pid open
        for pid in $(pids_of all); do
                open=$({ find "/proc/$pid/fd" -mindepth 1 2>/dev/null || true; } | wc -l)
                [ "$open" -lt 150 ] || die "process $pid has $open descriptors open"
        done
}

# Two lives: saved at step 1 and dead, then restored, compared, trained to step 2. Sets $cpu_ms, $files.
lives() { # number of tensors
        local limit=$(($(now_ms) + 250000)) image_kib kind
        peak=()
        output=$work/many$1.out
        (
                TIMEFORMAT='%3U %3S'
                time "$cairn" run --run "many$1" --every 10m -- "$zoo" "many:$1" --steps 2 --save-at 1 --die-at 1 \
                        --step-ms 300 >"$output" 2>&1
        ) 2>"$work/cpu" &
        runner=$!
        while kill -0 "$runner" 2>/dev/null; do
                [ "$(now_ms)" -lt "$limit" ] || die "$1 tensors are not through after 250 s"
                note_peaks
                few_descriptors
                sleep 0.1
        done
        finish 1
        expect_code 0
        cpu_ms=$(awk '{ print int(($1 + $2) * 1000) }' "$work/cpu")
        says "$output" 'restart 1 from step 1'
        "$cairn" verify "many$1@1" >"$work/verify.log" || die "$(cat "$work/verify.log")"
        [ "$("$cairn" inspect "many$1@1" --json | json tensor_count)" = "$1" ] || die "not $1 tensors"
        files=$(find "$CAIRN_STORE/many$1/000000000001-g0001" -type f | wc -l)
        [ "$files" -eq 4 ] || die "$files files for $1 tensors"
        image_kib=$(($(stat -c %s "$CAIRN_STORE/many$1/000000000001-g0001/rank-00000.data") / 1024))
        for kind in agent saver store trainer; do
                expect_peak "$kind" "$(bound "$kind" "$1" "$image_kib")"
        done
        rm -rf "$CAIRN_STORE/many$1"
        ok "B66 $1 tensors, image of $image_kib KiB: $cpu_ms ms of processor time, KiB at the most:" \
                "trainer ${peak[trainer]}, saver ${peak[saver]}, store ${peak[store]}, agent ${peak[agent]}; $files files"
}
lives $((most / 10))
few_ms=$cpu_ms
lives "$most"
# Linear is 10, anything quadratic 100; a busy machine makes processor time dearer as well.
[ "$cpu_ms" -le $((few_ms * 25 + 2000)) ] || die "$most tensors took $cpu_ms ms, a tenth of them $few_ms ms"
