#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
command -v clang-format >/dev/null || { echo "clang-format is not installed"; exit 77; }
exec make -s CAIRN_REPORTED=1 format-check
