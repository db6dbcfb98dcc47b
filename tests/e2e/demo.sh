#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `cairn demo`, as an ordinary user where we are root, and with a text of one's own.
. "$(dirname "$0")/lib.sh"
who="an ordinary user"
ordinary_user || { who=$(id -un); as_user=(env HOME="$outside/home" TMPDIR="$outside/home"); }
cp "$work/text" "$outside/text"
demo() { # expected pattern, arguments
        local pattern=$1
        shift
        try 0 "$pattern" "${as_user[@]}" "$cairn" demo "$@"
        [ -z "$(ls "$outside/home")" ] || die "the demo left something behind: $(ls "$outside/home")"
}
demo 'nothing was lost' --steps 60
ok "cairn demo as $who: $(grep -o '[0-9]* of [0-9]* lines equal' <<<"$said")"
demo 'nothing was lost' --steps 60 --data "$outside/text"
ok "cairn demo --data FILE as $who"
if [ -e "$BUILD/cairn-comm-gloo.so" ]; then
        demo 'nothing was lost' --steps 60 --ranks 2
        ok "GROUP-a the demonstration of two ranks, as make demo-group runs it"
fi
try 66 'no-such-file' "$cairn" demo --data "$work/no-such-file"
try 64 'steps' "$cairn" demo --steps 3
ok "cairn demo refuses what it cannot do"
