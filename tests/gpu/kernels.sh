#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Every kernel against its reference: the tests of tests/kernels, built for the GPU; $CAIRN_GPU_KERNELS is a folder with
# others (of the simulator). `kernels.sh SANITIZER` runs them once more under compute-sanitizer's memcheck.
set -u
shopt -s nullglob
programs=("${CAIRN_GPU_KERNELS:-$BUNDLE/steps/kernels}"/test_gpu_*)
[ ${#programs[@]} -gt 0 ] || { echo "not in this bundle: it was built without nvcc"; exit 77; }
checked=()
if [ $# -gt 0 ]; then
        [ -n "$1" ] || { echo "no compute-sanitizer: it comes with the toolkit"; exit 77; }
        checked=("$1" --tool memcheck --leak-check no --error-exitcode 1)
fi
failed=() first=''
for program in "${programs[@]}"; do
        name=${program##*/test_gpu_}
        echo "--- $name"
        begin=${EPOCHREALTIME/[.,]/}
        "${checked[@]}" "$program" >"$TMPDIR/out" 2>&1 || {
                failed+=("$name")
                [ -n "$first" ] || first=$(grep -m 1 -E '^(ERROR|.*error):' "$TMPDIR/out" || tail -n 1 "$TMPDIR/out")
        }
        cat "$TMPDIR/out"
        printf 'figure %s %d ms\n' "$name" $(((${EPOCHREALTIME/[.,]/} - begin) / 1000))
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}; $first"; exit 1; }
