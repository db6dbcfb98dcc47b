# shellcheck shell=bash
# shellcheck disable=SC2034 # used by the scripts
# SPDX-License-Identifier: Apache-2.0
#
# cuda.sh - lib.sh for scripts that train on the emulated driver and the kernels' simulator; sourced, never run.
# "${gpu[@]}" is "${tiny[@]}" on an emulated GPU; `emulated` before a command gives it one.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cuda=$BUILD/tests/cuda
for file in libcuda-emu.so cairn-cuda-emu.so libcublas-emu.so; do
        [ -e "$cuda/$file" ] || skip "$cuda/$file is not built"
done
# What the accesses of kernels do wrong is the kernels' tests' matter; it would take most of the time.
export CAIRN_LIBCUDA=$cuda/libcuda-emu.so CAIRN_CUDA=$cuda/cairn-cuda-emu.so \
        CAIRN_LIBCUBLAS=$cuda/libcublas-emu.so CAIRN_SIM_ACCESSES=0
# Tinier still: each thread of a kernel is a fiber.
tiny+=(--vocab char --batch 1 --context 8)
gpu=("${tiny[@]}" --device cuda)

# Each loss within 1e-4 of the other's, in the five steps after FROM.
losses_agree() { # log, log, from
        paste -d ' ' <(sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*"lr".*/\1 \2/p' "$1") \
                <(sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*"lr".*/\1 \2/p' "$2") |
                awk -v from="$3" '$1 != $3 { bad++ }
                        $1 > from && $1 <= from + 5 { seen++; d = ($2 - $4) / $2
                                if (d < -1e-4 || d > 1e-4) { print "step " $1 ": " $2 " and " $4; bad++ } }
                        END { exit bad > 0 || seen < 5 }' ||
                die "losses of ${1##*/} and ${2##*/} differ after step $3"
}
