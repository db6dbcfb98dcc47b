#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 1800 s
#
# clang-tidy on each source of the rooms that changed since it was last clean; see .clang-tidy for the checks.
# `make tidy` has the tests, too, which take as long again.
command -v clang-tidy >/dev/null || { echo "clang-tidy is not installed"; exit 77; }
exec make -s -j2 BUILD="${BUILD:-build}" CAIRN_REPORTED=1 tidy-rooms
