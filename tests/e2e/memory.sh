#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# B28: too little memory for a snapshot is refused at the start, with need, what is left and the remedy, and
# finally: another start could not do better. Nobody is killed. A small /dev/shm is no limit at all. Too few
# open files are refused at once. Control groups are real ones, of the version that can be had; a place without
# them says so.
. "$(dirname "$0")/mounts.sh"

limits='' in_group=''
# A group below our own with so many MiB; sets $in_group, a prefix for commands.
make_group() { # name, MiB
        local base file own
        if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
                own=$(sed -n 's/^0:://p' /proc/self/cgroup)
                base=/sys/fs/cgroup$own file=memory.max
        else
                own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
                base=/sys/fs/cgroup/memory$own file=memory.limit_in_bytes
        fi
        # In a container the path may be the machine's.
        [ -d "$base" ] || base=${base%"$own"}
        mkdir "$base/cairn-$$-$1" 2>/dev/null || return 1
        limits="$limits $base/cairn-$$-$1"
        { echo $(($2 << 20)) >"$base/cairn-$$-$1/$file"; } 2>/dev/null || return 1
        in_group=$base/cairn-$$-$1/cgroup.procs
}
# inside GROUP command...: in place of this shell.
inside() {
        echo $BASHPID >"$1"
        shift
        exec "$@"
}
remove_groups() {
        local status=$? group round
        for group in $limits; do
                for ((round = 0; round < 100; round++)); do
                        rmdir "$group" 2>/dev/null && break
                        sleep 0.05
                done
        done
        set +e
        (exit "$status")
        calm_down
}

# State of some 40 MB: the trainer needs a few times that for itself.
wide=("$train" --data "$work/text" --layers 4 --heads 4 --width 256 --context 16 --batch 1 --quiet)

# A container's /dev/shm.
mount_tmpfs 64k
mount --bind "$mounted" /dev/shm
try 0 '' "$cairn" run --run shm --every 2steps -- "${wide[@]}" --steps 6 --log "$work/shm.log"
try 0 '' "$cairn" verify shm
umount /dev/shm
ok "B28 a /dev/shm of 64 KiB is no limit"

# Too few open files, for the trainer and for everything: said at once.
for files in 7 10; do
        began=$(now_ms)
        try 73 '(limit of open files|Too many open files).*ulimit -n' "$cairn" run --run few --max-restarts 3 -- \
                bash -c 'ulimit -n "$1"; shift; exec "$@"' sh "$files" "${tiny[@]}" --log "$work/few.log"
        [ $(($(now_ms) - began)) -lt 25000 ] || die "$files open files took $(($(now_ms) - began)) ms to refuse"
done
for files in 12 16 20 24; do
        began=$(now_ms)
        try 69 'open files are needed for 1 rank and cairnd may have .*ulimit' \
                bash -c 'ulimit -n "$1"; shift; exec "$@"' sh "$files" "$cairn" run --run few -- "${tiny[@]}"
        [ $(($(now_ms) - began)) -lt 25000 ] || die "$files open files took $(($(now_ms) - began)) ms to refuse"
done
ok "a limit of 7 to 24 open files is refused at once: $said"

trap remove_groups EXIT
if ! make_group small 24; then
        echo "not shown: B28 in a control group: none can be made here"
        exit 0
fi
small=$in_group

# refused CODE NAME: what the start of that run said.
refused() {
        [ "$1" -eq 73 ] || die "$2: exit status $1, not 73: $(cat "$work/$2.out")"
        says "$work/$2.out" '[0-9]+ bytes of memory are needed for one snapshot and [0-9]+ are left \(the memory limit of cairnd.s control group\): raise'
        never_says "$work/$2.out" '; restart [0-9]'
}

# An agent for all, in a group that is too small; the trainer is outside of it.
(inside "$small" "$BUILD/cairnd" --socket "$work/agent.sock" >"$work/agent.out" 2>&1) &
agent=$!
wait_for 60 answers "$work/agent.sock"
status=0
CAIRN_SOCKET=$work/agent.sock timeout 100 "$cairn" run --run small --every 2steps -- "${wide[@]}" --steps 6 \
        --log "$work/small.log" >"$work/small.out" 2>&1 || status=$?
refused "$status" small
gone "$agent" && die "the agent was ended"
# Something smaller is served by the same agent.
CAIRN_SOCKET=$work/agent.sock try 0 '' "$cairn" run --run tiny --every 2steps -- "${tiny[@]}" --steps 6 --log "$work/tiny.log"
kill "$agent"
wait_for 60 gone "$agent"
ok "B28 an agent in a small group refuses: $(grep -m 1 -o '[0-9]* bytes of memory are needed.*' "$work/small.out")"

# Everything in one container: there is room for the trainer's state, not for a second one.
make_group whole 84 || die "a second group cannot be made"
whole=$in_group
status=0
(inside "$whole" timeout 100 "$cairn" run --run whole --every 2steps -- "${wide[@]}" --steps 6 \
        --log "$work/whole.log" >"$work/whole.out" 2>&1) || status=$?
refused "$status" whole
ok "B28 a small container refuses: $(grep -m 1 -o '[0-9]* bytes of memory are needed.*' "$work/whole.out")"

# With enough it works, and nothing else was wrong.
make_group enough 400 || die "a third group cannot be made"
status=0
(inside "$in_group" timeout 100 "$cairn" run --run enough --every 2steps -- "${wide[@]}" --steps 6 \
        --log "$work/enough.log" >"$work/enough.out" 2>&1) || status=$?
[ "$status" -eq 0 ] || die "exit status $status in a group of 400 MiB: $(cat "$work/enough.out")"
try 0 '' "$cairn" verify enough
ok "B28 the same container with 400 MiB trains and saves"
