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

# Ended in the middle, by a signal to it alone: what it started is gone, and its folder, too.
for signal in INT TERM; do
        output=$work/demo-$signal.out
        "${as_user[@]}" "$cairn" demo --steps 100000 >"$output" 2>&1 &
        runner=$!
        wait_for 100 eval 'grep -q step "$outside"/home/cairn-demo-*/reference.jsonl'
        [ "$signal" = TERM ] || try 0 'nothing was lost' "${as_user[@]}" "$cairn" demo --steps 60
        kill "-$signal" "$runner"
        finish 100
        expect_code $((128 + $(kill -l "$signal")))
        says "$output" 'nothing of it is left'
        [ -z "$(ls "$outside/home")" ] || die "the demo left its folder behind: $(ls "$outside/home")"
        [ -z "$(find "$outside/run" "$XDG_RUNTIME_DIR" -type s)" ] || die "the demo left a socket behind"
        [ -z "$(left_over)" ] || die "processes of the demo live on: $(left_over)"
done
ok "ended by SIGINT or SIGTERM, it ends its run and removes its folder; another one beside it does not matter"
try 66 'no-such-file' "$cairn" demo --data "$work/no-such-file"
try 64 'steps' "$cairn" demo --steps 3
try 64 'TMPDIR /d{70}: the name is too long' env TMPDIR="/$(printf '%070d' 0 | tr 0 d)" "$cairn" demo
ok "cairn demo refuses what it cannot do"
