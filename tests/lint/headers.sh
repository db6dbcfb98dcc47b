#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 900 s
#
# Every header compiles alone and twice; the public ones also as C++, which trainers may be written in.
set -u
export LC_ALL=C
shopt -s nullglob
BUILD=${BUILD:-build}
flags="-I. -I$BUILD/gen -Itests/cuda/sim -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter"
# shellcheck disable=SC2046
flags="$flags $(pkg-config --cflags liburing libprotobuf-c inih jansson openblas 2>/dev/null)"

compile() { # header, compiler and language options
        local header=$1
        shift
        # shellcheck disable=SC2086
        printf '#include "%s"\n#include "%s"\nint unused;\n' "$header" "$header" |
                "$@" $flags -fsyntax-only - || { echo "$header does not compile alone ($*)"; return 1; }
}

failures=0
for header in */*.h trainer/*/*.h tests/*/*.h tests/*/*/*.h; do
        [ "$header" = base/banned.h ] && continue # comes before everything by definition
        compile "$header" "${CC:-gcc}" -std=gnu17 -include base/banned.h -x c || failures=$((failures + 1))
done
for header in client/cairn.h base/types.h; do
        [ -e "$header" ] || continue
        command -v "${CXX:-g++}" >/dev/null || { echo "no C++ compiler, $header checked as C only"; continue; }
        compile "$header" "${CXX:-g++}" -std=c++11 -Wpedantic -x c++ || failures=$((failures + 1))
done
[ "$failures" -eq 0 ]
