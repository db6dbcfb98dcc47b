#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 900 s
#
# The leader of a group, killed at every point between the first rank's manifest and the last fsync of the commit:
# two nodes with two ranks each, agents of their own and one shared folder. In each life one passage of one fault
# point (base/fault.h) stops its process, and the leader's node, or its agent alone, is killed at that instant; or
# it crashes the store process and nothing else. The group comes back, and then
#
#   * it resumed from what was there: the newest visible checkpoint, or the attempt that all four manifests were there
#     of, which the new leader rolled forward; never from anything else, and never from less than was reported;
#   * all ranks began after that one step, every element right (lockstep.c), every visible checkpoint verifies;
#   * the next checkpoint commits.
#
# Defects are planted into what a life left behind, and have to be found. `leader_kill.sh whole [WAY...]` goes on,
# passage after passage, until none fires in two commits, and kills in all three ways (node, agent, store); without
# it the second commit's points, the node killed. JOBS=N lives at a time.
. "$(dirname "$0")/lib.sh"
lockstep=$helpers/lockstep
[ -x "$lockstep" ] || skip "$lockstep is not built"
JOBS=${JOBS:-4}
NONE=3 # the life's exit status when its fault did not fire

# ---- one life; the folder is $life, its store $CAIRN_STORE ----

declare -A node_pid
node() { # NAME [FAULT]
        local mode=fresh
        [ ! -d "$CAIRN_STORE/job" ] || [ "$1" = b ] || mode=auto
        mkdir -p -m 700 "$life/run-$1"
        CAIRN_FAULT=${2:-} CAIRN_FAULT_ONCE=${2:+$life/fired} XDG_RUNTIME_DIR=$life/run-$1 "$cairn" run --run job \
                --rdzv dir --nnodes 2:2 --nproc-per-node 2 --node "$1" --address 127.0.0.1 --every 1000000steps \
                --mode "$mode" -- "$lockstep" "$life/barrier" "$life/log" --steps 1000000 \
                >>"$life/$1.out" 2>&1 &
        node_pid[$1]=$!
        disown $!
}
reached() { # GENERATION STEP: that or a later one
        [ -s "$life/log" ] || return 1
        local generation step
        read -r generation _ step < <(tail -n 1 "$life/log")
        [ "$generation" -ge "$1" ] && [ "$step" -ge "$2" ]
}
violation() {
        echo "VIOLATION $doing:" "$@" | tr '\n' ' '
        echo
        tail -n 12 "$life/a.out" "$life/b.out"
        exit 1
}
within() { # SECONDS WHAT command...
        local limit=$(($(now_ms) + $1 * 1000)) what=$2
        shift 2
        until "$@" >/dev/null 2>&1; do
                [ "$(now_ms)" -lt "$limit" ] || violation "not within the time: $what"
                sleep 0.05
        done
}
snapshot() { # SECONDS: sets $reported
        local said
        said=$(XDG_RUNTIME_DIR=$life/run-b timeout $(($1 + 5)) "$cairn" snapshot job --wait --timeout "$1" 2>&1) ||
                return 1
        reported=$(sed -n 's/.*step \([0-9]*\).*/\1/p' <<<"$said" | head -n 1)
}
manifests() { # folder
        find "$1" -maxdepth 1 -name 'rank-*.manifest' | wc -l
}
# What a group that comes now finds: the newest visible step (0: none), and how many attempts are complete.
look() {
        local folder name
        visible=0 complete=0
        for folder in "$CAIRN_STORE"/job/[0-9]*-g* "$CAIRN_STORE"/job/.pending-* "$CAIRN_STORE"/job/.stale-*; do
                [ -d "$folder" ] || continue
                name=${folder##*/}
                case $name in
                [0-9]*) [ "$((10#${name%%-*}))" -le "$visible" ] || visible=$((10#${name%%-*})) ;;
                *) [ "$(manifests "$folder")" -lt 4 ] || complete=$((complete + 1)) ;;
                esac
        done
}
# What a defect would have left behind.
plant() {
        local newest half
        newest=$(find "$CAIRN_STORE/job" -maxdepth 1 -name '[0-9]*-g0001' | sort | tail -n 1)
        half=$(find "$CAIRN_STORE/job" -maxdepth 1 -name '.pending-*' | sort | head -n 1)
        case $1 in
        early) rm "$newest/rank-00003.manifest" ;; # COMMIT, and the member's manifest did not get there
        half) # rolled forward without all manifests
                cp "$newest/INDEX" "$newest/COMMIT" "$half"
                rm -f "$half/rank-00001.manifest"
                mv "$half" "$CAIRN_STORE/job/000000900000-g0001"
                complete=0
                ;;
        dropped) rm -r "$half" ;; # complete, and not rolled forward
        esac
}
# The member noticed, and has ended and settled its ranks.
member_waits() {
        grep -q 'restart 1 from' "$life/b.out"
}
begun_after() { # the step of each rank's newest start, once each
        local rank
        for rank in 0 1 2 3; do
                cat "$life/a.out" "$life/b.out" | sed -n "s/^lockstep: rank $rank of 4 begins after step //p" |
                        sort -n | tail -n 1
        done | sort -u
}
rolled_forward() { # STEP
        grep -Eq "rolled forward 0*$1-g0001, which was written but not committed" "$life"/?.out
}
all_begun() { # GENERATION: twice four ranks said so
        [ "$(cat "$life/a.out" "$life/b.out" | grep -c '^lockstep: rank . of 4 begins')" -ge 8 ] && reached "$1" 1
}
harm() { # ACTION WHERE
        local pid
        case $1 in
        node) "$helpers/process" "${node_pid[a]}" kill-tree ;;
        agent) kill -KILL "$("$helpers/process" "${node_pid[a]}" agent | head -n 1)" ;; # its children end with it
        esac
        # The member's store process was stopped: it goes on when the leader is gone, or not.
        [ "$2" = a ] || for pid in $("$helpers/process" "${node_pid[b]}" store); do
                if [ "$2" = b ]; then kill -CONT "$pid"; else kill -KILL "$pid"; fi
        done
}
check_visible() {
        local folder
        for folder in "$CAIRN_STORE"/job/[0-9]*-g*; do
                [ -d "$folder" ] || continue
                [ -e "$folder/COMMIT" ] && [ -e "$folder/INDEX" ] && [ "$(manifests "$folder")" -eq 4 ] ||
                        violation "${folder##*/} is visible and not whole: $(ls "$folder")"
        done
        "$cairn" verify job >"$life/verify" 2>&1 || violation "$(cat "$life/verify")"
}
# The store process crashed and is replaced: nobody loses anything, and it goes on.
check_going_on() {
        local round before=${reported:-0}
        for round in 1 2 3 4 5; do
                ! snapshot 20 || break
        done
        [ "${reported:-0}" -gt "$before" ] || violation "no commit after it, $round tries"
        reached 1 "$reported" || violation "the group is not the first one any more"
        check_visible
        echo going-on >"$life/result"
}
# life ACTION WHERE POINT PASSAGE [PLANT]
life() {
        local how=stop visible complete reported='' steps
        doing="$*"
        [ "$1" != store ] || how=crash
        mkdir "$life"
        export CAIRN_STORE=$life/store
        if [ "$2" = a ]; then node a "$3:$4:$how" && node b; else node a && node b "$3:$4:$how"; fi
        within 150 "the first steps" reached 1 3
        for _ in 1 2; do
                snapshot 100 &
                local waiter=$!
                until [ -e "$life/fired" ] || ! kill -0 $waiter 2>/dev/null; do sleep 0.02; done
                [ ! -e "$life/fired" ] || break
                wait $waiter || violation "a cut without any fault failed"
                reached 1 1
                reported=$("$cairn" list job --json | json 'checkpoints.*.step' | sort -n | tail -n 1)
        done
        [ -e "$life/fired" ] || exit $NONE
        if [ "$1" = store ]; then
                check_going_on
                return
        fi
        harm "$1" "$2"
        [ "$1" = agent ] || within 150 "the member learns of it" member_waits
        [ "$1" = agent ] || look
        [ -z "${5:-}" ] || plant "$5"
        [ "$1" = agent ] || node a
        within 150 "a second group" all_begun 2
        steps=$(begun_after)
        [ "$(wc -l <<<"$steps")" -eq 1 ] || violation "ranks began after steps $steps"
        [ "$steps" -ge "${reported:-0}" ] || violation "step $reported was reported, step $steps resumed"
        if [ "$1" = agent ]; then
                echo agent >"$life/result"
        elif [ "$complete" -gt 0 ]; then
                [ "$steps" -gt "$visible" ] || violation "a complete attempt was not rolled forward: step $steps"
                echo rolled-forward >"$life/result"
        elif [ "$2" = b ] && [ "$steps" -gt "$visible" ] && rolled_forward "$steps"; then
                # The member's store process goes on: the last manifest came after the look, before the leader's.
                echo rolled-forward >"$life/result"
        else
                [ "$steps" -eq "$visible" ] || violation "step $visible was there, step $steps resumed"
                [ "$visible" -gt "${reported:-0}" ] && echo committed >"$life/result" || echo before >"$life/result"
        fi
        snapshot 100 || violation "no commit after it"
        check_visible
        ! grep -q 'is not of step' "$life"/?.out || violation "a rank's state is not its step's"
}

# ---- all of them ----

count=0 failed=0
declare -A lives_of
# begin ACTION WHERE POINT PASSAGE [PLANT]: a life of its own, in the background; $number is its number.
begin() {
        count=$((count + 1))
        number=$count
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do sleep 0.1; done
        (
                life=$work/life-$number
                set +e
                (life "$@") >"$work/life-$number.said" 2>&1
                echo $? >"$work/life-$number.code"
                for pid in "$life"/run-?; do
                        for pid in $(grep -lzxF "XDG_RUNTIME_DIR=$pid" /proc/[0-9]*/environ 2>/dev/null); do
                                pid=${pid#/proc/}
                                kill -KILL "${pid%/environ}" 2>/dev/null
                        done
                done
                rm -rf "$life/store"
        ) &
        lives_of[$number]="$*"
}
ended() { # NUMBER: sets $code
        until [ -s "$work/life-$1.code" ]; do sleep 0.1; done
        code=$(cat "$work/life-$1.code")
}
expect_life() { # NUMBER
        ended "$1"
        if [ "$code" -ne 0 ] && [ "$code" -ne $NONE ]; then
                failed=$((failed + 1))
                cat "$work/life-$1.said"
        fi
}
points=(a:manifest-write a:manifest-rename a:commit-index a:commit-record a:commit-rename a:commit-parent-sync
        b:manifest-rename b-killed:manifest-rename)

# Until none fires; several passages at once, for most of a life is waiting.
sweep() { # ACTION
        local place from i fired none=0
        for place in "${points[@]}"; do
                [ "$1" != store ] || [ "${place%%:*}" != b-killed ] || continue # the same as b
                for ((from = 1; ; from += JOBS)); do
                        local numbers=()
                        for ((i = from; i < from + JOBS; i++)); do
                                begin "$1" "${place%%:*}" "${place#*:}" "$i"
                                numbers+=("$number")
                        done
                        fired=0
                        for i in "${numbers[@]}"; do
                                expect_life "$i"
                                [ "$code" -eq $NONE ] || fired=$((fired + 1))
                        done
                        none=$((none + JOBS - fired))
                        [ "$fired" -eq "$JOBS" ] || break
                done
                [ "$from" -gt 1 ] || [ "$fired" -gt 0 ] || die "$place never fired"
        done
        echo "ok $1: $none passages more did not come"
}
if [ "${1:-}" = whole ]; then
        [ $# -gt 1 ] || set -- whole node agent store
        for action in "${@:2}"; do
                sweep "$action"
        done
else
        numbers=()
        for place in a:manifest-write:1 a:manifest-rename:3 a:manifest-rename:4 a:commit-index:1 a:commit-index:2 \
                a:commit-record:2 a:commit-rename:2 a:commit-parent-sync:2 b:manifest-rename:3 b:manifest-rename:4 \
                b-killed:manifest-rename:4; do
                IFS=: read -r where point passage <<<"$place"
                begin node "$where" "$point" "$passage"
                numbers+=("$number")
        done
        for number in "${numbers[@]}"; do
                expect_life "$number"
                [ "$code" -ne $NONE ] || die "${lives_of[$number]} did not fire"
        done
fi
declare -A plants=([early]=a:commit-parent-sync:2 [half]=a:manifest-rename:4 [dropped]=a:commit-index:2)
planted=()
for plant in "${!plants[@]}"; do
        IFS=: read -r where point passage <<<"${plants[$plant]}"
        begin node "$where" "$point" "$passage" "$plant"
        planted+=("$number")
done
for number in "${planted[@]}"; do
        ended "$number"
        if [ "$code" -ne 1 ] ||
                ! grep -Eq '^VIOLATION.*(not whole|not rolled forward| resumed|✗)' "$work/life-$number.said"; then
                cat "$work/life-$number.said"
                die "a planted defect was not found: ${lives_of[$number]} (status $code)"
        fi
        rm -f "$work/life-$number/result"
        echo "ok found: $(grep '^VIOLATION' "$work/life-$number.said" | head -n 1 | cut -c1-150)"
done
[ "$failed" -eq 0 ] || die "$failed of $count lives failed"
results=$(cat "$work"/life-*/result | sort | uniq -c | awk '{ printf "%s%d %s", (NR > 1 ? ", " : ""), $1, $2 }')
ok "the leader is killed in $(cat "$work"/life-*/result | wc -l) lives; resumed from: $results"
