#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What neither compiler nor clang-tidy says: 100 columns, functions of at most 70 lines, no calls that
# run a shell, no notes about work that is not done, a licence line at the top of each source, no variable
# of ours that no page names.
set -u
export LC_ALL=C
shopt -s nullglob
files=(*/*.[ch] trainer/*/*.[ch] */*.cu */*.cuh */*.cc tests/*/*.[ch] tests/*/*/*.[ch] tests/*/*/*.cuh tests/*/*.cu)
awk '
function complain(text) {
        print FILENAME ":" FNR ": " text
        failures++
}
# Columns, not bytes: a byte that continues a UTF-8 character takes none.
function columns(line) {
        gsub(/[\200-\277]/, "", line)
        return length(line)
}
FNR == 1 {
        inside = 0
        if ($0 !~ /SPDX-License-Identifier: Apache-2.0/)
                complain("the first line names no licence")
}
columns($0) > 100 { complain("more than 100 columns") }
/[ \t]$/ { complain("blank at the end of the line") }
/\t/ { complain("tab") }
/(^|[^A-Za-z0-9_.>])(system|popen)[ ]?\(/ { complain("runs a shell; start a program with an argument list") }
FILENAME !~ /^tests\/lint/ && /(T[O]DO|F[I]XME)/ { complain("unfinished work belongs in the code or nowhere") }
# A function starts at the line that ends with "{" outside of anything and ends at a lone "}".
!inside && /{$/ && !/^extern "C"/ { inside = FNR }
inside && /^}/ {
        if ($0 == "}" && FNR - inside - 1 > 70)
                complain("a function of " FNR - inside - 1 " lines, 70 are allowed")
        inside = 0
}
END { exit failures > 0 }
' "${files[@]}" /dev/null || failed=1
for name in $(grep -hoE '(getenv|locate)\("CAIRN_[A-Z_]+"' [a-z]*/*.c trainer/*/*.c | grep -oE 'CAIRN_[A-Z_]+' | sort -u); do
        grep -qw "$name" docs/*.md docs/man/* || { echo "\$$name is read and neither in docs/ nor in its man pages" && failed=1; }
done
exit "${failed:-0}"
