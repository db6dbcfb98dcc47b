#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 120 s
#
# A session of a GPU, the emulated one: slabs of device memory, memory of cuMemAlloc and plain memory that are
# registered by their pointers. The trainer copies for its saver; it is killed and resumes bit for bit.
. "$(dirname "$0")/lib.sh"
export CAIRN_LIBCUDA=$BUILD/tests/cuda/libcuda-emu.so
gpu=$helpers/gpu_trainer
steps=60

begin() { # run, options of cairn run -- further arguments
        local run=$1 options=()
        shift
        while [ "$1" != -- ]; do
                options+=("$1")
                shift
        done
        shift
        start "$run" "${options[@]}" -- "$gpu" --log "$work/$run.log" --steps $steps "$@"
}
whole() { # begin and finish
        begin "$@"
        finish 60
        expect_code 0
}

whole reference --every 20steps --
for memory in slabs driver host; do
        whole "$memory" --every 10steps -- --memory $memory --die-at 35
        same_log "$work/reference.log" "$work/$memory.log"
        "$cairn" verify "$memory" >"$work/verify.out" || die "a checkpoint is damaged"
        ok "$memory: killed after step 35 and resumed, bit for bit"
done
