#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# What goes wrong with a GPU: each function of the driver fails once, at its first call and later; too little
# memory; an error that stays; no plug-in, no driver, no such GPU. Never a signal, a hang or another device instead.
# CUDA_FAULTS=all: each of the first 3 calls of every function (the first call of every fourth one unless given).
. "$(dirname "$0")/cuda.sh"
# What a lost device holds is left to it, on purpose.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
alone=("${gpu[@]}" --without-checkpoints --steps 3)

try 64 'make.*cairn-cuda.so' env CAIRN_CUDA=/nonexistent.so "${alone[@]}"
try 64 'load cuBLAS.*CAIRN_LIBCUBLAS' env CAIRN_LIBCUBLAS=/nonexistent.so "${alone[@]}"
try 64 'CUDA' env CAIRN_EMU_DEVICES=0 "${alone[@]}"
try 64 'load CUDA .*CAIRN_LIBCUDA names it: .*no-driver.so.*correct or unset the variable' env CAIRN_LIBCUDA=/no-driver.so "${alone[@]}"
# The plug-in itself, where a toolkit built it and no driver is there.
if [ -e "$BUILD/cairn-cuda.so" ] && ! /sbin/ldconfig -p | holds 'libcuda\.so\.1'; then
        try 64 'no NVIDIA driver is loaded.*--device cpu' env -u CAIRN_CUDA -u CAIRN_LIBCUDA -u CAIRN_LIBCUBLAS "${alone[@]}"
fi
try 64 'made for CUDA 11.0.*install a newer one' env CAIRN_EMU_VERSION=11000 "${alone[@]}"
try 64 'lacks virtual memory management: install a newer' env CAIRN_EMU_LACKS=102 "${alone[@]}"
try 73 'memory are not free; end what else' env CAIRN_EMU_MEMORY=8 "${alone[@]}"
try 64 'no GPU 3 among the 1' "${tiny[@]}" --without-checkpoints --device cuda:3
try 64 'cuda:N' "${tiny[@]}" --without-checkpoints --device gpu
ok "CUDA what is missing is said, nothing else is computed on"

# Exit status and sentence of a start in which something failed: one of ours, in time, and it says why.
clean_error() { # command...
        local status=0
        said=$(timeout -k 5 110 "$@" 2>&1) || status=$?
        case $status in
        0) return 0 ;;
        64 | 69 | 70 | 71 | 73) ;;
        *) die "exit status $status: $said" ;;
        esac
        grep -q 'cairn-train: .*:' <<<"$said" || die "status $status without a sentence: $said"
}

# Memory: less of it may be had by a smaller micro-batch, or not at all.
short=0
for n in 1 2 3 4 5; do
        clean_error env "CAIRN_EMU_FAULT=cuMemAlloc_v2:$n:2" "${alone[@]}" --batch 2
        ! grep -q 'memory is short on rank 0.*micro-batches of 1 instead of 2' <<<"$said" || short=$((short + 1))
done
[ "$short" -ge 1 ] || die "no start made its micro-batches smaller"
ok "CUDA too little memory: smaller micro-batches, or a clean end"

# An error that stays ends the process with a status of its own.
for operation in 40 90; do
        try 71 'has to end' env "CAIRN_EMU_FAULT=cuLaunchKernel:$operation:719" "${alone[@]}"
done
try 71 'restart 1 from' env CAIRN_EMU_FAULT=cuLaunchKernel:90:719 "$cairn" run --run lost --max-restarts 1 -- \
        "${gpu[@]}" --steps 3
ok "CUDA an error that stays ends the process with 71, and it is started again"

# Each function of the driver, in a whole session with an agent.
functions=$(sed -n 's/^ *X([A-Za-z]*, \(cu[A-Za-z0-9]*\), .*/\1/p' device/cuda_abi.h)
[ "$(wc -w <<<"$functions")" -gt 40 ] || die "which functions are there?"
calls=1 each=4
[ "${CUDA_FAULTS:-}" != all ] || calls=3 each=1
failed=0 place=$((SEED % each))
echo "seed $SEED"
for function in $functions; do
        [ $((place++ % each)) -eq 0 ] || continue
        for ((n = 1; n <= calls; n++)); do
                clean_error env "CAIRN_EMU_FAULT=$function:$n:719" "$cairn" run --run "f$((failed++))" --every 2steps \
                        --max-restarts 0 -- "${gpu[@]}" --steps 3
        done
done
ok "CUDA $failed faults in the driver's $(wc -w <<<"$functions") functions: a clean end each time"
