#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Very many small tensors (B66): every one comes back exactly, the number of files and descriptors stays what it
# is for one tensor, memory is bounded, and ten times the tensors do not take more than some ten times as long.
# MANY=1000000 (make check-large) is the long form.
. "$(dirname "$0")/lib.sh"
zoo=$helpers/zoo
[ -x "$zoo" ] || skip "$zoo is not built"
most=${MANY:-100000}

# Two lives: saved at step 1 and dead, then restored, compared, trained to step 2. Sets $took, $peak, $files.
lives() { # number of tensors
        local began kind
        began=$(now_ms)
        start "many$1" --every 10m -- "$zoo" "many:$1" --steps 2 --save-at 1 --die-at 1 --step-ms 300
        wait_for 200 grep -q 'saved step 1' "$output"
        peak=0
        for kind in agent saver store trainer; do
                for pid in $(pids_of "$kind"); do
                        kib=$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null || true)
                        [ "${kib:-0}" -le "$peak" ] || { peak=$kib && largest=$kind; }
                        open=$(find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l)
                        [ "$open" -lt 150 ] || die "$kind has $open descriptors open"
                done
        done
        finish 250
        took=$(($(now_ms) - began))
        expect_code 0
        says "$output" 'restart 1 from step 1'
        "$cairn" verify "many$1@1" >"$work/verify.log" || die "$(cat "$work/verify.log")"
        [ "$("$cairn" inspect "many$1@1" --json | json tensor_count)" = "$1" ] || die "not $1 tensors"
        files=$(find "$CAIRN_STORE/many$1/000000000001-g0001" -type f | wc -l)
        [ "$files" -eq 4 ] || die "$files files for $1 tensors"
}
lives $((most / 10))
few_ms=$took few_peak=$peak
lives "$most"
# Linear would be 10; anything quadratic is 100. And some 4 KiB a tensor, names and records included.
[ "$took" -le $((few_ms * 30 + 3000)) ] || die "$most tensors took $took ms, a tenth of them $few_ms ms"
[ "$peak" -le $((most * 4 + 65536)) ] || die "the $largest took $peak KiB for $most tensors"
ok "B66 $((most / 10)) tensors $few_ms ms, $most tensors $took ms; at most $few_peak and $peak KiB ($largest), $files files"
