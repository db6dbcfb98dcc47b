#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# cairn-cuda.so, where a toolkit built it, holds code for each GPU that it is meant for, PTX for newer ones, and every
# launcher of gpu.h; so does the one of the tests, whose code is the processor's.
set -u
export LC_ALL=C
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

launchers() { sed -n 's/^int \(gpu_[a-z_0-9]*\)(.*/\1/p' kernels/gpu.h; }
[ "$(launchers | wc -l)" -ge 25 ] || complain "gpu.h is not read as it should be"
has_launchers() {
        local symbols
        symbols=$(nm "$1") || { complain "nm cannot read $1"; return; }
        for name in $(launchers); do
                grep -q " [tT] $name\$" <<<"$symbols" || complain "$1 lacks $name"
        done
}
has_launchers "$BUILD/tests/cuda/cairn-cuda-emu.so"
[ -e "$BUILD/cairn-cuda.so" ] || {
        [ "$failures" -eq 0 ] || exit 1
        echo "no toolkit built cairn-cuda.so"
        exit 77
}
has_launchers "$BUILD/cairn-cuda.so"

cuobjdump=$(command -v cuobjdump || echo "${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump")
[ -x "$cuobjdump" ] || {
        [ "$failures" -eq 0 ] || exit 1
        echo "launchers are there; NOT SHOWN: which GPUs have code, for this toolkit has no cuobjdump"
        exit 0
}
elf=$("$cuobjdump" --list-elf "$BUILD/cairn-cuda.so")
ptx=$("$cuobjdump" --list-ptx "$BUILD/cairn-cuda.so")
files=$(ls kernels/*.cu | wc -l)
for arch in sm_80 sm_90 sm_100; do
        found=$(grep -c "\.$arch\.cubin" <<<"$elf")
        [ "$found" -ge "$files" ] || complain "$found files of $files have code for $arch"
done
found=$(grep -c '\.sm_80\.ptx\|\.compute_80\.ptx' <<<"$ptx")
[ "$found" -ge "$files" ] || complain "$found files of $files have PTX"
[ "$failures" -eq 0 ]
