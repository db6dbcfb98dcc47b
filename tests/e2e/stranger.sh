#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# Another user of this machine at the agent's socket: who is not in the agent's group is refused, who is may
# operate but not disturb. Floods, silence, garbage, descriptors, unread answers, false trainers and false
# runners: training goes on bit for bit and without a pause, checkpoints commit, whoever may ask is answered,
# and when the stranger is gone nothing of him is left in the agent.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" -eq 0 ] || skip "only root can act as another user"
ordinary_user || skip "setpriv is missing, or other users cannot reach the programs here"
member=$(getent group games | cut -d: -f3)
[ -n "$member" ] || skip "there is no group 'games' that could be the agent's"
seconds=${ROUNDS:-1}
args=(--steps 1000000 --step-ms 2 --seed 9)
run reference --every 100000steps -- "${tiny[@]}" "${args[@]}" --stop-at 600

act() { # group, socket, what: $said, $status
        status=0
        said=$(setpriv --reuid 65534 --regid "$1" --clear-groups "$helpers/stranger" "$2" "$name" "$seconds" "$3" 2>&1) || status=$?
}
refused() { # group, socket, why
        act "$1" "$2" flood
        [ "$status" -eq 77 ] && grep -q "cannot connect: $3" <<<"$said" || die "$status, not refused: $said"
}
# Connected, because somebody opened the socket's mode; but nothing is said to him.
unheard() { # group, socket, what
        act "$1" "$2" "$3"
        [ "$status" -eq 0 ] && grep -Eq 'connected [1-9][0-9]*, answered 0$' <<<"$said" || die "$3: $status, $said"
}
committed_step() {
        "$cairn" status "$name" --json | json runs.0.committed_step
}
# Asked from beginning to end of what the stranger does; each answer soon, each commit newer.
goes_on() { # command...
        local before now took began
        before=$(committed_step)
        "$@" &
        local stranger=$! asked=0
        while kill -0 $stranger 2>/dev/null; do
                began=$(now_ms)
                "$cairn" snapshot "$name" --wait --timeout 60 >"$work/asked" 2>&1 || die "the owner's snapshot: $(cat "$work/asked")"
                took=$(($(now_ms) - began))
                [ "$took" -lt 30000 ] || die "the owner waited $took ms for a snapshot"
                asked=$((asked + 1))
        done
        wait $stranger || exit 1 # it said why
        now=$(committed_step)
        [ "$now" -gt "$before" ] || die "nothing was committed meanwhile"
        [ "$asked" -gt 0 ] || die "nothing was asked meanwhile"
}
held() { # of the agent: descriptors, threads
        "$helpers/usage" "$runner" | awk '$1 == "agent" { print $4, $5 }'
}
is_as_before() { # or less: what it held then may have been a little more
        local fds threads fds_before threads_before
        read -r fds threads < <(held)
        read -r fds_before threads_before <<<"$before_all"
        [ "$fds" -le "$fds_before" ] && [ "$threads" -le "$threads_before" ]
}
# The trainer: same process, same bits, no step slower than the gate allows (2 s, and a busy machine's pause).
unaffected() {
        [ "$(pids_of trainer)" = "$trainer" ] || die "the trainer was started again"
        wait_step "$work/$name.log" 600 60
        head -n "$(wc -l <"$work/reference.log")" "$work/$name.log" >"$work/head.log"
        same_log "$work/reference.log" "$work/head.log"
        longest=$(awk -F'"seconds":' '{ t = $2 + 0; if (NR > 1 && t - last > most) most = t - last; last = t }
                END { printf "%d\n", most * 1000 }' "$work/$name.log")
        [ "$longest" -lt 4500 ] || die "a step took $longest ms"
        try 0 '✓' "$cairn" verify "$name"
        never_says "$output" 'restart 1|panic|assert'
}
begin() { # run
        name=$1
        start "$1" --every 20steps --keep-last 3 -- "${tiny[@]}" "${args[@]}"
        wait_step "$work/$1.log" 30 60
        pid_of trainer
        trainer=$pid
}

# A private agent: nobody comes near it; and where modes were opened by mistake it hears only its user.
mkdir -m 700 "$outside/runtime"
export XDG_RUNTIME_DIR=$outside/runtime
begin private
socket=$outside/runtime/cairn/private.sock
[ -S "$socket" ] || die "the socket is elsewhere"
refused 65534 "$socket" 'Permission denied'
before_all=$(held)
chmod 755 "$outside/runtime" "$outside/runtime/cairn"
refused 65534 "$socket" 'Permission denied'
chmod 666 "$socket"
began=$(now_ms)
for what in flood silent garbage fds mute trainer runner; do
        unheard 65534 "$socket" "$what"
done
chmod 600 "$socket"
chmod 700 "$outside/runtime/cairn" "$outside/runtime"
[ "$(grep -c 'neither the agent' "$output")" -le $((12 * (($(now_ms) - began) / 1000 + 7))) ] || die "the stranger fills the log"
wait_for 60 is_as_before
unaffected
ok "a private agent: others are refused, by the folder's mode, by the socket's and by their credentials; longest step $longest ms"
"$cairn" stop private >/dev/null
finish 60
expect_code 0

# A system's agent: the group operates, others are refused.
export CAIRN_SOCKET=$outside/agent/cairnd.sock
mkdir "$outside/agent"
printf 'store = %s\ngroup = games\n' "$CAIRN_STORE" >"$work/cairnd.conf"
"$BUILD/cairnd" --config "$work/cairnd.conf" --socket "$CAIRN_SOCKET" >>"$work/cairnd.out" 2>&1 &
agent=$!
disown "$agent"
wait_for 60 answers "$CAIRN_SOCKET"
held() { # the smallest of a few looks: who was answered may not have been let go of yet
        local look
        for look in 1 2 3 4 5 6 7 8; do
                echo "$(find "/proc/$agent/fd" -mindepth 1 | wc -l) $(find "/proc/$agent/task" -mindepth 1 -maxdepth 1 | wc -l)"
                sleep 0.05
        done | sort -n | head -n 1
}
begin system
[ "$(stat -c '%a %g' "$CAIRN_SOCKET")" = "660 $member" ] || die "the socket is $(stat -c '%a %U %G' "$CAIRN_SOCKET")"
refused 65534 "$CAIRN_SOCKET" 'Permission denied'
chmod 666 "$CAIRN_SOCKET"
goes_on unheard 65534 "$CAIRN_SOCKET" flood
goes_on unheard 65534 "$CAIRN_SOCKET" garbage
chmod 660 "$CAIRN_SOCKET"
ok "a system's agent: who is not of its group is refused"
before_all=$(held)
for what in flood silent garbage fds mute trainer runner; do
        member_acts() {
                act "$member" "$CAIRN_SOCKET" "$what"
                [ "$status" -eq 0 ] || die "$what: $status, $said"
                echo "    $what: $said"
        }
        goes_on member_acts
        wait_for 60 is_as_before
        gone "$agent" && die "$what: the agent ended: $(tail -n 5 "$work/cairnd.out")"
done
unaffected
ok "a member of its group: floods, silence, garbage, descriptors and lies do no harm; longest step $longest ms"
"$cairn" stop system >/dev/null
finish 60
expect_code 0
kill -TERM "$agent"
wait_for 60 gone "$agent"
