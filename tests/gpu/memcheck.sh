#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The kernels' step once more, in its short form, under compute-sanitizer's memcheck.
set -u
sanitizer=${CAIRN_GPU_SANITIZER:-}
[ -n "$sanitizer" ] || { echo "no compute-sanitizer: it comes with the toolkit"; exit 77; }
[ -x "$BUNDLE/steps/kernels" ] || { echo "not in this bundle"; exit 77; }
CAIRN_GPU_BRIEF=1 exec "$sanitizer" --tool memcheck --leak-check no --error-exitcode 1 "$BUNDLE/steps/kernels"
