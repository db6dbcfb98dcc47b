#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Includes go one way only:
#
#     base <- format <- device <- kernels      client  -> kernels, device, format
#                                              agent   -> device, format
#     trainer -> client/cairn.h, comm, kernels, device      tools -> client, format      comm -> device
#
# Everybody may include base; tests may include everything.
set -u
export LC_ALL=C
shopt -s nullglob
files=(*/*.[ch] trainer/*/*.[ch] */*.cu */*.cuh */*.cc)
awk '
BEGIN {
        may["base"] = " base "
        may["format"] = " base format "
        may["device"] = " base format device "
        may["kernels"] = " base format device kernels "
        may["client"] = " base format device kernels client "
        may["agent"] = " base format device agent "
        may["comm"] = " base format device comm "
        may["trainer"] = " base format device kernels comm trainer "
        may["tools"] = " base format client tools "
}
function complain(text) {
        print FILENAME ":" FNR ": " text
        failures++
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
        split($0, quoted, "\"")
        path = quoted[2]
        split(FILENAME, from, "/")
        if (from[1] == "tests")
                next
        room = path
        if (!sub("/.*", "", room)) {
                complain("\"" path "\" is not relative to the root")
                next
        }
        if (from[1] == "trainer" && path == "client/cairn.h")
                next
        if (!(from[1] in may))
                next
        if (index(may[from[1]], " " room " ") == 0)
                complain(from[1] " must not include " path)
}
END { exit failures > 0 }
' "${files[@]}" /dev/null
