#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `cairn demo`, as an ordinary user where we are root, and with a text of one's own.
. "$(dirname "$0")/lib.sh"
demo() { # expected pattern, arguments
        local pattern=$1
        shift
        mkdir -p "$work/home"
        local as=()
        if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
                # Everything on the way to the programs has to be readable for that user.
                chmod 755 "$work" && chmod 700 "$work/home" "$work/run"
                chown -R 65534:65534 "$work/home" "$work/run"
                as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
                "${as[@]}" test -x "$cairn" || as=()
        fi
        try 0 "$pattern" "${as[@]}" env HOME="$work/home" TMPDIR="$work/home" "$cairn" demo "$@"
        [ -z "$(ls "$work/home")" ] || die "the demo left something behind: $(ls "$work/home")"
        who=$([ ${#as[@]} -gt 0 ] && echo "an ordinary user" || id -un)
}
demo 'nothing was lost' --steps 60
ok "cairn demo as $who: $(grep -o '[0-9]* of [0-9]* lines equal' <<<"$said")"
demo 'nothing was lost' --steps 60 --data "$work/text"
ok "cairn demo --data FILE as $who"
try 66 'no-such-file' "$cairn" demo --data "$work/no-such-file"
try 64 'steps' "$cairn" demo --steps 3
ok "cairn demo refuses what it cannot do"
