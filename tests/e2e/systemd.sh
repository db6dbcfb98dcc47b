#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# What `make install` puts beside the programs: units that systemd accepts, users and folders, manual pages
# without a complaint, and a completion that knows every command and option.
. "$(dirname "$0")/lib.sh"
tree=$work/tree
make -s -o all CAIRN_REPORTED=1 BUILD="$BUILD" PREFIX="$tree" install >"$work/install.out" 2>&1 || die "make install failed"
for file in lib/systemd/system/cairnd.service lib/systemd/system/cairnd.socket lib/systemd/system/cairn-run@.service lib/sysusers.d/cairn.conf \
        lib/tmpfiles.d/cairn.conf share/cairn/cairnd.conf share/man/man1/cairn.1 share/man/man8/cairnd.8 \
        share/man/man3/libcairn.3 share/bash-completion/completions/cairn; do
        [ -s "$tree/$file" ] || die "$file was not installed"
done
! grep -rl '@PREFIX@' "$tree/lib/systemd" "$tree/lib/tmpfiles.d" "$tree/share" || die "@PREFIX@ was left in it"
ok "make install"

# Completion and help name the same.
declare -A _cairn_options
complete() { :; }
. "$tree/share/bash-completion/completions/cairn"
unset -f complete
commands=$("$cairn" --help | awk '/^  [a-z]/ { print $1 }' | sort)
[ "$(printf '%s\n' "${!_cairn_options[@]}" | sort)" = "$commands" ] || die "completion has other commands: ${!_cairn_options[*]}"
for command in $commands; do
        help=$("$cairn" "$command" --help | awk '/^  --/ { print $1 ($2 ~ /^[A-Z]+$/ || $2 ~ /^[A-Z]=/ || $2 ~ /^GLOB/ ? "=" : "") }' | sort)
        [ "$(tr ' ' '\n' <<<"${_cairn_options[$command]}" | sort)" = "$help" ] ||
                die "completion of $command: ${_cairn_options[$command]}; help: $help"
        grep -Eq "^..?fB$command.fR|, .fB$command.fR" docs/man/cairn.1 || die "cairn.1 does not name $command"
done
reply() { # words...: what completion offers for the last one
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _cairn
        echo "${COMPREPLY[*]}"
}
[ "$(reply cairn sna)" = snapshot ] || die "completion of 'sna'"
[ "$(reply cairn prune run --dry)" = --dry-run ] || die "completion of '--dry'"
[ "$(reply cairn run --mode re)" = resume ] || die "completion of --mode"
[ -z "$(reply cairn run --every '')" ] || die "completion of a value that nobody knows"
ok "completion knows each of $(wc -w <<<"$commands") commands with its options, so does cairn.1"

if command -v groff >/dev/null; then
        for page in docs/man/*.[1-9]; do
                complaints=$(groff -man -ww -z -Tutf8 "$page" 2>&1)
                [ -z "$complaints" ] || die "$page: $complaints"
        done
        ok "groff has nothing to say about the manual pages"
fi

# The agent as the unit starts it, and asked by a tool.
"$tree/bin/cairnd" --store "$CAIRN_STORE" --socket "$work/run/agent.sock" >"$work/agent.out" 2>&1 &
agent=$!
wait_for 60 answers "$work/run/agent.sock"
try 69 '^✓ agent .*answers' env CAIRN_SOCKET="$work/run/agent.sock" "$cairn" doctor "$work"
kill -TERM "$agent"
wait "$agent" || die "cairnd ended with $?"
"$tree/bin/cairnd" --config "$tree/share/cairn/cairnd.conf" --socket "$work/run/agent.sock" >"$work/agent.out" 2>&1 &
agent=$!
wait_for 60 test -S "$work/run/agent.sock"
kill -TERM "$agent"
wait "$agent" || die "cairnd with the installed configuration ended with $?"
ok "cairnd runs with the installed configuration"

command -v systemd-analyze >/dev/null && command -v systemd-socket-activate >/dev/null ||
        skip "systemd is not installed: the units were not verified, and no socket was handed over"

# Socket activation: the agent that is started for the first connection answers it, and leaves the socket's file.
activated=$work/run/activated.sock
start_activated() { # arguments of cairnd
        systemd-socket-activate --seqpacket --listen="$activated" "$tree/bin/cairnd" --store "$CAIRN_STORE" "$@" \
                >"$work/activated.out" 2>&1 &
        agent=$!
        wait_for 60 test -S "$activated"
}
start_activated --socket "$activated"
export CAIRN_SOCKET=$activated
start activated --every 10steps -- "${tiny[@]}" --steps 40
finish 60
expect_code 0
try 0 '40' "$cairn" list activated
try 0 'no run is running' "$cairn" status
kill -TERM "$agent"
wait "$agent" || die "the activated cairnd ended with $?: $(cat "$work/activated.out")"
[ -S "$activated" ] || die "the agent removed the service manager's socket"
rm "$activated"
unset CAIRN_SOCKET
ok "started for the first connection, on the service manager's socket"

ends_when_called() {
        CAIRN_SOCKET=$activated timeout 5 "$cairn" status >/dev/null 2>&1 || true
        gone "$agent"
}
start_activated --socket "$work/run/elsewhere.sock"
wait_for 60 ends_when_called
code=0
wait "$agent" || code=$?
[ "$code" -eq 64 ] || die "a socket that the configuration does not know: $code"
says "$work/activated.out" 'let them agree'
ok "a socket that the configuration does not know is refused (64)"

for unit in cairnd.service cairnd.socket cairn-run@job.service; do
        complaints=$(systemd-analyze verify --man=no "$tree/lib/systemd/system/$unit" 2>&1) ||
                die "systemd-analyze verify $unit: $complaints"
        complaints=$(grep -E 'cairn' <<<"$complaints" || true)
        [ -z "$complaints" ] || die "systemd-analyze verify $unit: $complaints"
done
ok "systemd accepts the units"
if command -v systemd-sysusers >/dev/null && [ "$(id -u)" -eq 0 ]; then
        mkdir -p "$work/root/etc"
        systemd-sysusers --root="$work/root" "$tree/lib/sysusers.d/cairn.conf" >"$work/sysusers.out" 2>&1 || die "sysusers"
        says "$work/root/etc/passwd" '^cairn:'
        ok "sysusers makes the agent's user"
fi
