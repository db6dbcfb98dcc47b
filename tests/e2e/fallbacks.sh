#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The slower ways to write (DESIGN's io_uring; B35, B37, B38, B28): where the ring, the registration or
# O_DIRECT is refused, one warning says why and what helps, the data files hold the same bytes, and each way
# reads what the others wrote.
. "$(dirname "$0")/mounts.sh"

mount_passfs || skip "$why"
args=(--steps 40 --seed 5 --dropout 0.1)
base=$work/plain
mkdir "$base"

# The data of the run's last step, without the header: it names run and file.
last_bytes() {
        tail -c +4097 "$1/000000000040-g0001/rank-00000.data" | sha256sum
}
# way NAME PREFIX...: the same run under that command prefix; its data without the header: $work/NAME.sum.
way() {
        local what=$1
        shift
        rm -rf "$CAIRN_STORE/$what"
        "$@" "$cairn" run --run "$what" --every 20steps -- "${tiny[@]}" "${args[@]}" \
                --log "$work/$what.log" >"$work/$what.out" 2>&1 || die "$what: exit $?"
        last_bytes "$CAIRN_STORE/$what" >"$work/$what.sum" || die "$what: no checkpoint of step 40"
        cmp -s "$work/reference.sum" "$work/$what.sum" || die "$what: other bytes on disk"
        try 0 '' "$cairn" verify "$what"
}
warns() { # name, times, pattern
        local count
        count=$(grep -Ec 'fast path' "$work/$1.out" || true)
        [ "$count" -eq "$2" ] || die "$1: $count warnings, not $2"
        [ "$2" -eq 0 ] || says "$work/$1.out" "$3"
}
locked_memory_is_named() { # limit
        grep -Eq 'fast path' "$work/locked-$1.out" || return 0
        says "$work/locked-$1.out" 'refused \(Cannot allocate memory\).*(locked-memory limit|needed and the limit is [0-9]+ KiB)'
}

CAIRN_STORE=$base
"$cairn" run --run reference --every 20steps -- "${tiny[@]}" "${args[@]}" --log "$work/reference.log" \
        >"$work/reference.out" 2>&1 || die "exit $?"
last_bytes "$base/reference" >"$work/reference.sum"

"$helpers/deny_ring" true || skip "seccomp filters cannot be installed here"
way noring "$helpers/deny_ring"
warns noring 1 'io_uring refused \(Operation not permitted\).*seccomp'
ok "B35 io_uring refused: same bytes, $(grep -m 1 -o 'io_uring refused.*' "$work/noring.out")"

CAIRN_STORE=$mounted/store
mkdir "$CAIRN_STORE"
weather nodirect
way nodirect env
warns nodirect 1 'O_DIRECT refused \(Invalid argument\).*buffered'
way neither "$helpers/deny_ring"
warns neither 1 'io_uring refused.*O_DIRECT refused'
ok "O_DIRECT refused, alone and with the ring: same bytes, one warning each"
weather

# Across: written without, read with, and the other way round.
start across --every 20steps -- "${tiny[@]}" "${args[@]}" --stop-at 20
finish 100
try 0 '' "$helpers/deny_ring" "$cairn" run --run across --mode resume --every 20steps -- "${tiny[@]}" \
        "${args[@]}" --log "$work/across.log"
same_log "$work/reference.log" "$work/across.log"
try 0 '' "$helpers/deny_ring" "$cairn" run --run back --every 20steps -- "${tiny[@]}" "${args[@]}" \
        --stop-at 20 --log "$work/back.log"
try 0 '' "$cairn" run --run back --mode resume --every 20steps -- "${tiny[@]}" "${args[@]}" \
        --log "$work/back.log"
same_log "$work/reference.log" "$work/back.log"
ok "B35 a checkpoint of one way is resumed by the other, bit for bit"

# Little or no locked memory, as an ordinary user.
if ordinary_user; then
        for limit in 65536 0; do
                CAIRN_STORE=$outside/home/store-$limit
                export CAIRN_STORE
                cp "$work/text" "$outside/home/text"
                "${as_user[@]}" prlimit --memlock="$limit" "$cairn" run --run locked --every 20steps -- \
                        "$train" --data "$outside/home/text" --layers 1 --heads 2 --width 16 --context 16 \
                        --batch 2 --quiet "${args[@]}" --log "$outside/home/locked-$limit.log" \
                        >"$work/locked-$limit.out" 2>&1 || die "memlock $limit: exit $?"
                [ "$(grep -c 'fast path' "$work/locked-$limit.out" || true)" -le 1 ] || die "more than one warning"
                locked_memory_is_named "$limit"
                same_log "$work/reference.log" "$outside/home/locked-$limit.log"
                last_bytes "$CAIRN_STORE/locked" >"$work/locked.sum"
                cmp -s "$work/reference.sum" "$work/locked.sum" || die "memlock $limit: other bytes on disk"
                ok "B37 locked memory $limit: same bytes; $(grep -m 1 -o 'error="use the fast.*' \
                        "$work/locked-$limit.out" || echo 'nothing was refused')"
        done
else
        echo "not shown: B37: no ordinary user can be had here"
fi

# B38: odd sizes on each file system.
for kind in passfs tmpfs ext4 xfs; do
        case $kind in
        passfs) CAIRN_STORE=$work/mount-1/odd ;;
        tmpfs) mount_tmpfs 64m && CAIRN_STORE=$mounted/store ;;
        *) if mount_image "$kind" 320; then CAIRN_STORE=$mounted/store; else
                echo "not shown: B38 on $kind: $why"
                continue
        fi ;;
        esac
        try 0 '' "$cairn" run --run sizes --every 10m -- "$helpers/zoo" sizes --steps 8 --save-at 5 --die-at 7
        try 0 '' "$cairn" verify sizes
        ok "B38 1 to 1 MiB + 1 bytes on $kind: every byte came back"
done

# B28: more staging than cairnd may take is refused at the start, with need, limit and remedy.
CAIRN_STORE=$base
echo 'staging_bytes_max = 64K' >"$work/small.conf"
"$BUILD/cairnd" --config "$work/small.conf" --store "$base" --socket "$work/small.sock" >"$work/small.out" 2>&1 &
small=$!
wait_for 100 env CAIRN_SOCKET="$work/small.sock" "$cairn" status
status=0
CAIRN_SOCKET=$work/small.sock timeout 100 "$cairn" run --run small --max-restarts 0 --every 20steps -- \
        "${tiny[@]}" "${args[@]}" --log "$work/small.log" >"$work/needs.out" 2>&1 || status=$?
kill "$small"
[ "$status" -ne 0 ] || die "64 KiB of staging were enough"
[ "$status" -ne 135 ] || die "SIGBUS"
grep -Eqh '[0-9]+ bytes of memory are needed.*[0-9]+ are left \(staging_bytes_max.*raise' \
        "$work/needs.out" "$work/small.out" ||
        die "the refusal does not say need, limit and remedy"
ok "B28 too little staging: $(grep -hm 1 -o '[0-9]* bytes of memory are needed.*' "$work/needs.out" "$work/small.out" | head -n 1)"
