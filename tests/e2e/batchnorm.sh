#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Tensors that change outside the update: registered so they are saved as of the update's end; registered
# wrongly the debug mode finds it and names the tensor.
. "$(dirname "$0")/lib.sh"
args=(--steps 80 --step-ms 2 --batchnorm-demo --accumulate 2)
run reference --every 10m -- "${tiny[@]}" "${args[@]}"
stands_still 28 3 21
start shadow --every 5steps --max-restarts 100 -- "${still[@]}" "${tiny[@]}" "${args[@]}"
for step in 17 38 59; do
        wait_step "$work/shadow.log" $step 100
        pid_of trainer
        slay "$pid"
done
finish 100
expect_code 0
same_log "$work/reference.log" "$work/shadow.log"
# The statistics themselves: the same bytes at the same step.
crc_of() {
        "$cairn" inspect "$1@80" --tensors --json |
                "$helpers/json" 'tensors.*.name&dtype&shape&extents' | grep '^embedding.running_mean '
}
[ "$(crc_of reference | sed 's/"offset":[0-9]*//')" = "$(crc_of shadow | sed 's/"offset":[0-9]*//')" ] ||
        die "the running statistics differ: $(crc_of reference) $(crc_of shadow)"
ok "i running statistics restored bit for bit after three kills"

start wrong --every 2steps -- env CAIRN_DEBUG_MUTATION=1 "${tiny[@]}" "${args[@]}" --batchnorm-wrong \
        --log "$work/wrong.log"
finish 100
says "$output" 'embedding\.running_mean'
ok "i --batchnorm-wrong is detected, and the tensor is named"

start right --every 2steps -- env CAIRN_DEBUG_MUTATION=1 "${tiny[@]}" "${args[@]}" --log "$work/right.log"
finish 100
expect_code 0
never_says "$output" 'changed|mutat'
ok "i the right registration passes the same check"
