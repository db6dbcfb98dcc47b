#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The runner's own test: a passing, a failing, a crashing, a hanging and a skipping canary, a daemon that
# a test leaves behind, and a private folder that has to go. A runner that lets one of them through would
# make every other test worthless.
set -u
canaries=$TMPDIR/tests
mkdir -p "$canaries"
export BUILD=$TMPDIR/build

canary() { # name, body
        printf '#!/bin/bash\n%s\n' "$2" >"$canaries/$1"
        chmod +x "$canaries/$1"
}
canary pass "touch \"\$TMPDIR/file\"; echo \"\$TMPDIR\" >'$TMPDIR/private'; setsid sleep 300 & echo \$! >'$TMPDIR/left'"
canary fail 'echo the reason; exit 3'
canary crash 'kill -SEGV $$'
canary hang "trap '' TERM; sleep 300 & echo \$! >'$TMPDIR/hung'; wait; sleep 300"
canary skip 'echo first; echo no device here; exit 77'

failures=0
expect() { # what, condition...
        local what=$1
        shift
        "$@" || { echo "✗ $what"; failures=$((failures + 1)); }
}
is_gone() {
        local state
        state=$(sed 's/.*) //; s/ .*//' "/proc/$(<"$1")/stat" 2>/dev/null)
        [ -z "$state" ] || [ "$state" = Z ]
}
has_line() {
        grep -q -- "$1" "$TMPDIR/output"
}

tests/run -j 3 -t 1 "$canaries"/{pass,fail,crash,hang,skip} "$canaries/missing" >"$TMPDIR/output"
expect "a failure makes the runner fail" [ $? -eq 1 ]
expect "the closing line counts" [ "$(tail -n 1 "$TMPDIR/output")" = "1 passed, 4 failed, 1 skipped" ]
expect "a failure is named with its status" has_line '✗ fail .*exit status 3'
expect "its log is shown" has_line '| the reason'
expect "the end names it once more, with its last word" has_line '^failed: fail: the reason'
expect "a crash is a failure" has_line '✗ crash'
expect "a hang is a failure" has_line '✗ hang .*no end within 1 s'
expect "a missing test is a failure" has_line '✗ missing .*cannot be run'
expect "a skip says why" has_line '– skip .*no device here'
expect "a hanging test's children are killed" is_gone "$TMPDIR/hung"
expect "a daemon left behind is killed" is_gone "$TMPDIR/left"
expect "the private folder is removed" [ ! -e "$(<"$TMPDIR/private")" ]

tests/run "$canaries/pass" >"$TMPDIR/output"
expect "success is success" [ $? -eq 0 ]
expect "the closing line has no skips" [ "$(tail -n 1 "$TMPDIR/output")" = "1 passed, 0 failed" ]
tests/run "$canaries/skip" >"$TMPDIR/output"
expect "skips alone are no success" [ $? -eq 1 ]
tests/run >"$TMPDIR/output"
expect "no test is no success" [ $? -eq 1 ]
cat "$TMPDIR/output"
[ "$failures" -eq 0 ]
