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

# GPUs, by the emulated driver.
gpu() { # status, pattern, VARIABLE=VALUE ...
        local status=$1 pattern=$2
        shift 2
        try "$status" "$pattern" env CAIRN_LIBCUDA="$BUILD/tests/cuda/libcuda-emu.so" CAIRN_EMU_DEVICES=2 \
                CAIRN_LIBNVML="$BUILD/tests/cuda/libcuda-emu.so" CUDA_MPS_PIPE_DIRECTORY="$work" \
                CAIRN_CUDA=/nowhere.so CAIRN_LIBNCCL=/nowhere.so "$@" "$cairn" doctor
}
gpu 0 '^✓ NVIDIA driver +for CUDA 12.4, .*/libcuda-emu.so' CAIRN_EMU_PERSISTENCE=1
for line in 'GPU 0 +emulated GPU, GPU-656d756c-6174-6564-2047-505500000000, 4.0 GiB, sm_80' 'GPU 1 ' \
        'GPU memory ' 'GPU handles ' 'GPU staging ' 'persistence +GPUs stay awake' 'MPS +not in use'; do
        grep -Eq "^✓ $line" <<<"$said" || die "nothing about $line: $said"
done
gpu 0 '^! persistence .*nvidia-smi -pm 1' CAIRN_EMU_PERSISTENCE=0
gpu 0 '^! GPU staging +GPU 1: not tried, its memory is full →' CAIRN_EMU_MEMORY=1
gpu 1 '^✗ GPU memory +GPU 0: no virtual memory management →' CAIRN_EMU_LACKS=102
gpu 1 '^✗ GPU handles +GPU 0: no memory handles as descriptors →' CAIRN_EMU_LACKS=103
gpu 1 '^✗ GPU staging +GPU 0: no registered host memory →' CAIRN_EMU_LACKS=99
gpu 1 '^✗ GPU staging +GPU 1: .*CUDA_ERROR_NOT_PERMITTED' CAIRN_EMU_FAULT=cuMemHostRegister_v2:2:800
gpu 1 '^✗ NVIDIA driver .*CUDA 11.3, 11.4 is needed' CAIRN_EMU_VERSION=11030
gpu 1 '^✗ NVIDIA driver .*SYSTEM_DRIVER_MISMATCH.*restart' CAIRN_EMU_FAULT=cuInit:1:803
gpu 0 '^✓ NVIDIA driver .*no GPU is visible' CAIRN_EMU_DEVICES=0
gpu 0 '^! NVIDIA driver .*CUDA_VISIBLE_DEVICES' CAIRN_EMU_DEVICES=0 CUDA_VISIBLE_DEVICES=
gpu 1 '^✗ GPU 1 .*NVLINK|^✗ GPU 1 .*ECC' CAIRN_EMU_FAULT=cuDeviceGetName:2:214
mkfifo "$work/control"
gpu 0 '^! MPS .*control is there'
rm "$work/control"
# What cairn-train needs beside a driver: where a GPU is; without it other trainers still work.
gpu 0 '^! cairn-cuda.so .*/nowhere.so.* → '
grep -Eq '^! NCCL .*/nowhere.so: .*CAIRN_LIBNCCL.* → ' <<<"$said" || die "nothing about NCCL: $said"
if [ -e "$BUILD/tests/comm/libnccl-script.so" ]; then
        gpu 0 '^✓ NCCL +2.28.9, .*/libnccl-script.so$' CAIRN_LIBNCCL="$BUILD/tests/comm/libnccl-script.so"
fi
plugin=$BUILD/tests/cuda/cairn-cuda-emu.so blas=$BUILD/tests/cuda/libcublas-emu.so
if [ -e "$plugin" ]; then
        gpu 0 '^✓ cairn-cuda.so +.*/cairn-cuda-emu.so$' CAIRN_CUDA="$plugin" CAIRN_LIBCUBLAS="$blas"
        grep -Eq '^✓ cuBLAS +.*/libcublas-emu.so$' <<<"$said" || die "nothing about cuBLAS: $said"
        gpu 0 '^! cuBLAS .*/nowhere.so: .*CAIRN_LIBCUBLAS.* → ' CAIRN_CUDA="$plugin" CAIRN_LIBCUBLAS=/nowhere.so
fi
try 1 '^✗ NVIDIA driver .*CAIRN_LIBCUDA names it: /nowhere/libcuda.so.1: cannot open .* → unset \$CAIRN_LIBCUDA' \
        env CAIRN_LIBCUDA=/nowhere/libcuda.so.1 "$cairn" doctor
try 1 '^✗ NVIDIA driver .*lacks cu.* → unset \$CAIRN_LIBCUDA' env CAIRN_LIBCUDA=libm.so.6 "$cairn" doctor
env CAIRN_LIBCUDA="$BUILD/tests/cuda/libcuda-emu.so" "$cairn" doctor --json >"$work/json" || die "--json with a GPU: $?"
grep -q '"GPU staging"' "$work/json" || die "--json without GPUs"
if [ ! -e /dev/nvidiactl ] && ! "$BUILD/cairnd" --probe-gpu | holds '"present":true'; then
        try 0 '^✓ NVIDIA driver +none' "$cairn" doctor
        grep -Eq 'GPU (0|nodes|memory)|MPS|persistence|cairn-cuda|cuBLAS|NCCL' <<<"$said" && die "more than one line without a GPU: $said"
fi
ok "GPUs: what is there, what is lacking, what fails"

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
