#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A store whose author means harm (B62): names and texts that attack terminals, shells, formats and
# paths are printed escaped and otherwise mean nothing; programs, libraries and settings beside the
# files of a checkpoint are neither opened nor run.
. "$(dirname "$0")/lib.sh"
[ -x "$helpers/hostile" ] || skip "$helpers/hostile is not built"
trainer=("${tiny[@]}" --steps 30 --seed 3)

run good --every 10steps -- "${trainer[@]}" --stop-at 20
"$helpers/hostile" "$CAIRN_STORE" hostile

# No control character but the newline, neither of seven nor of eight bits.
plain() { # what; the output on standard input
        local bad
        bad=$(tee "$work/said" | LC_ALL=C grep -nP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' || true)
        [ -z "$bad" ] || die "$1 prints control characters: $(cat -v <<<"$bad" | head -n 3)"
        [ -s "$work/said" ] || die "$1 prints nothing"
        ok "$1: escaped"
}
point=hostile/000000000005-g0001
cd "$work" # where `touch pwned` would leave its file
for command in list "list hostile" "list hostile --json" "inspect $point" "inspect $point --tensors" \
        "inspect $point --tensors --json" "verify hostile" "verify hostile --json" "status hostile"; do
        # shellcheck disable=SC2086
        { "$cairn" $command 2>&1 || true; } | plain "cairn $command"
done
"$cairn" inspect "$point" --tensors | holds -F '$(touch pwned)' || die "the tensors' names are not shown"
"$cairn" inspect "$point" --tensors | holds -F '%s%s%n%n' || die "a name was taken for a format"
"$cairn" inspect "$point" --json | json descriptions >/dev/null || die "inspect --json is no JSON"
try 0 '✓' "$cairn" verify hostile
# A trainer meets it: everything differs, and the error lists it.
{ "$cairn" run --run hostile --from 5 -- "${trainer[@]}" --log "$work/h.log" 2>&1 || true; } |
        plain "a refused restore"

# What has no business in a checkpoint.
mark=$work/executed
for place in "$CAIRN_STORE" "$CAIRN_STORE/good" "$CAIRN_STORE"/good/0*; do
        printf '#!/bin/sh\ntouch "%s"\n' "$mark" >"$place/hook.sh"
        chmod 755 "$place/hook.sh"
        for name in libcairn.so evil.so pytorch_model.bin cairnd.conf .bashrc; do
                cp "$place/hook.sh" "$place/$name"
        done
        ln -sf /etc/passwd "$place/rank-99999.data"
        ln -sf "$place/hook.sh" "$place/cairn-train"
done
try 0 'good|20' "$cairn" list good
try 0 '✓' "$cairn" verify good
run good --mode resume -- "${trainer[@]}" --stop-at 25
[ ! -e "$mark" ] || die "something of the store was executed"
ok "B62 RESUME-48 foreign files do no harm to list, verify and restore"

# Known names, and folders on the way to them.
known='(CAIRN-STORE|COMMIT|INDEX|rank-[0-9]{5}\.(manifest|data)(\.tmp)?|GEN-[0-9]+(\.start)?|exit\.json|marks/?|marks/(\.tmp-[0-9a-f]{16}|[A-Za-z0-9-]+)|\.tmp-[0-9a-f]{16})'
folders='((good|hostile)/?)?(\.?(pending|stale|trash)-[^/]*/?|[0-9]{12}-g[0-9]{4}/?)?'
watched() { # what, command...: looks at every execve and open of everything it starts
        local what=$1 opened
        shift
        strace -f -y -qq -o "$work/trace" -e trace=execve,execveat,open,openat,openat2 "$@" \
                >"$work/watched.out" 2>&1 || true
        ! grep -E 'exec(ve\(|veat\([^,]*, )"'"$CAIRN_STORE" "$work/trace" || die "$what executes from the store"
        ! grep -E 'open.*"[^"]*(hook\.sh|\.so|\.bin|cairnd\.conf|\.bashrc|rank-99999)"' "$work/trace" |
                grep -Ev '"/(lib|usr|etc|proc|sys)' || die "$what opens a foreign file"
        # What was opened is behind the descriptor that came back.
        opened=$(grep -E '^[0-9]+ +open' "$work/trace" | grep -oE '= [0-9]+<'"$CAIRN_STORE"'[^>]*' |
                sed -E "s|= [0-9]+<$CAIRN_STORE/?||" | sort -u |
                tee "$work/opened" | grep -Evx "$folders($known)?" || true)
        [ -z "$opened" ] || die "$what opens $opened"
        grep -q COMMIT "$work/opened" || die "$what was not watched"
        ok "B62 RESUME-48 $what: nothing executed, nothing foreign opened"
}
if ! command -v strace >/dev/null || ! strace -qq -o /dev/null true 2>/dev/null; then
        ok "not shown here: what is opened (there is no strace, or it may not trace)"
        exit 0
fi
watched "cairn list" "$cairn" list good
watched "cairn inspect" "$cairn" inspect good@20 --tensors
watched "cairn verify" "$cairn" verify good
watched "a restore" "$cairn" run --run good --mode resume -- "${trainer[@]}" --log "$work/good.log"
says "$work/watched.out" 'resumed|step'
[ ! -e "$mark" ] && [ ! -e "$work/pwned" ] || die "something of the store was executed"
