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
# Where the state is, who copies, and what can be saved after a death.
described=0
describe() { # pattern, further arguments of the trainer
        local run=said-$((described += 1)) pattern=$1
        shift
        begin "$run" --every 1000steps -- --step-ms 200 "$@"
        wait_for 20 eval "\"$cairn\" status $run | grep -q 'rank 0 .*active'"
        try 0 "$pattern" "$cairn" status "$run"
        kill_all
}
lost='no cut after its death: [1-9][0-9]* tensors are not of cairn_alloc'
describe 'GPU 656d756c-6174-6564-2047-505500000000, the trainer copies; a cut after its death is possible'
describe "GPU 656d756c-.*, the trainer copies; $lost" --memory driver
describe "host memory, the trainer copies; $lost" --device host --memory host
ok "status says where the state is, who copies, and whether a cut is possible after a death"

for memory in slabs driver host; do
        whole "$memory" --every 10steps -- --memory $memory --die-at 35
        same_log "$work/reference.log" "$work/$memory.log"
        "$cairn" verify "$memory" >"$work/verify.out" || die "a checkpoint is damaged"
        ok "$memory: killed after step 35 and resumed, bit for bit"
done
