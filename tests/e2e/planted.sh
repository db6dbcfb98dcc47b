#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 600 s
#
# Another user plants links, pipes, folders and files at every path that Cairn is going to create: before a run
# begins and while it trains. Either a start is refused with a sentence, soon, or the run trains bit for bit;
# what the links point at is never touched, and a checkpoint that is in nobody's way commits.
. "$(dirname "$0")/lib.sh"
bait=$work/bait
mkdir -p "$bait/folder"
echo "not Cairn's" >"$bait/file"
cp "$bait/file" "$bait/folder/inside"
kinds='link-to-file link-to-folder link-to-nothing pipe folder file'

# As root the planter is somebody else; otherwise things of one's own have to do.
planter() { # path; what lies in the way of a living run may be gone already
        [ "$(id -u)" -ne 0 ] || chown -hR 65534:65534 "$1" 2>/dev/null || [ ! -e "$1" ]
}
plant() { # kind, path
        case $1 in
        link-to-file) ln -s "$bait/file" "$2" ;;
        link-to-folder) ln -s "$bait/folder" "$2" ;;
        link-to-nothing) ln -s "$bait/new" "$2" ;;
        pipe) mkfifo "$2" ;;
        folder) mkdir "$2" && cp "$bait/file" "$2/inside" 2>/dev/null || [ ! -e "$2" ] ;;
        file) cp "$bait/file" "$2" ;;
        esac
        planter "$2"
}
bait_before=$(digest "$bait")
untouched() { # what
        [ "$(digest "$bait")" = "$bait_before" ] || die "$1: the bait was touched: $(ls -lR "$bait")"
}
args=(--steps 30 --seed 4)
run reference --every 10steps -- "${tiny[@]}" "${args[@]}" --log "$work/reference.log"

# One start with one thing planted: 0 and the same bits, or refused with a sentence that names the place.
attempt() { # what is named, where, kind
        local status=0 began log=$CAIRN_STORE/run/log.jsonl
        began=$(now_ms)
        timeout -k 5 100 "$cairn" run --run run --every 10steps --max-restarts 1 -- "${tiny[@]}" "${args[@]}" \
                >"$work/planted.out" 2>&1 || status=$?
        [ $(($(now_ms) - began)) -lt 60000 ] || die "$2 $3: $(($(now_ms) - began)) ms"
        untouched "$2 $3"
        case $status in
        0)
                same_log "$work/reference.log" "$log"
                [ "$(newest_step_of run)" = 30 ] || die "$2 $3: step 30 was not committed"
                "$cairn" verify run@30 >"$work/said" || die "$2 $3: $(cat "$work/said")"
                accepted=$((accepted + 1))
                ;;
        65 | 66 | 69 | 73 | 77 | 78)
                grep -Eq "(cairn run|cairn-train|cairnd): .*$1" "$work/planted.out" || die "$2 $3: $status without a sentence about $1"
                refused=$((refused + 1))
                ;;
        *) die "$2 $3: exit status $status" ;;
        esac
}
accepted=0 refused=0
for kind in $kinds; do
        # The store itself, and each path below it; `marks` is planted in a folder of its planter's, too.
        for path in '' CAIRN-STORE run run/marks run/marks/LOCK run/marks/FINISHED run/GEN-0001 run/GEN-0001.start \
                run/.pending-g0001-a000001 run/.pending-g0001-a000002 run/000000000010-g0001 run/exit.json run/log.jsonl; do
                rm -rf "$CAIRN_STORE"
                case $path in
                '') plant "$kind" "$CAIRN_STORE" ;;
                CAIRN-STORE) mkdir "$CAIRN_STORE" && plant "$kind" "$CAIRN_STORE/CAIRN-STORE" ;;
                *)
                        "$cairn" init "$CAIRN_STORE" >/dev/null
                        [ "$path" = run ] || mkdir -p "$(dirname "$CAIRN_STORE/$path")"
                        plant "$kind" "$CAIRN_STORE/$path"
                        [ "$path" = run ] || planter "$CAIRN_STORE/run"
                        ;;
                esac
                attempt "$(case $path in run/0*) echo checkpoints ;; run/GEN* | run | run/marks/F*) echo 'store|run' ;; *) basename "/store/$path" ;;
                esac | sed 's/^marks$\|^LOCK$/run/')" "store/$path" "$kind"
        done
        # Where the agent listens: in the runtime directory, else in the temporary one.
        rm -rf "$CAIRN_STORE" "$work/run/cairn" "$work/tmp"
        plant "$kind" "$work/run/cairn"
        attempt 'socket directory .*/cairn' runtime/cairn "$kind"
        rm -rf "$work/run/cairn"
        mkdir -m 1777 "$work/tmp"
        plant "$kind" "$work/tmp/cairn-$(id -u)"
        XDG_RUNTIME_DIR='' TMPDIR=$work/tmp attempt 'socket directory .*/cairn-[0-9]+' tmp/cairn-UID "$kind"
        mkdir -m 700 "$work/run/cairn"
        plant "$kind" "$work/run/cairn/run.sock"
        attempt 'socket' runtime/cairn/run.sock "$kind"
        rm -rf "$work/run/cairn" "$CAIRN_STORE"
done
[ "$accepted" -ge 20 ] && [ "$refused" -ge 50 ] || die "$accepted accepted, $refused refused"
ok "planted before the start: $accepted times trained all the same, $refused times refused; no link was followed"

# While it trains, at names that are still to come: a decoy makes way.
"$cairn" init "$CAIRN_STORE" >/dev/null
for kind in $kinds; do
        start "decoy-$kind" --every 10m -- "${tiny[@]}" "${args[@]}" --stall-step 5 --stall-ms 200000
        wait_step "$work/decoy-$kind.log" 4 60
        point=$CAIRN_STORE/decoy-$kind/000000000004-g0001
        plant "$kind" "$point"
        try 0 'step 4 committed as 000000000004-g0001' "$cairn" snapshot "decoy-$kind" --wait
        [ -d "$point" ] && [ ! -L "$point" ] || die "$kind: it is still there"
        try 0 '✓' "$cairn" verify "decoy-$kind"
        untouched "a decoy, $kind"
        kill_all
done
ok "planted at a checkpoint's name: a checkpoint takes its place"

# An attempt whose folder is taken fails, and the next one does not.
args=(--steps 300 --seed 4)
run undisturbed --every 100steps -- "${tiny[@]}" "${args[@]}"
start live --every 10steps --keep-last 100 -- "${tiny[@]}" "${args[@]}" --step-ms 30
live=$CAIRN_STORE/live
wait_step "$work/live.log" 12 60
pid_of trainer
kill -STOP "$pid" # so that nothing is made at these names meanwhile
is_still() {
        [ "$("$cairn" status live --json | json runs.0.snapshot)" = null ] && [ -n "$(steps_of live)" ]
}
wait_for 60 is_still
number=$(find "$live" -maxdepth 1 -name '.pending-*' | sed -n 's/.*-a0*//p' | sort -n | tail -n 1)
for kind in $kinds; do
        number=$((number + 2))
        plant "$kind" "$live/$(printf '.pending-g0001-a%06d' $number)"
        plant "$kind" "$live/$(printf '.trash-%012d-g0001' $number)"
done
plant folder "$live/exit.json"
kill -CONT "$pid"
finish 60
expect_code 0
untouched "while it trained"
same_log "$work/undisturbed.log" "$work/live.log"
[ "$(newest_step_of live)" = 300 ] || die "the last step was not committed: $(steps_of live | tr '\n' ' ')"
try 0 '✓' "$cairn" verify live
failed=$(grep -c checkpoint=failed "$output" || true)
[ "$failed" -ge 1 ] || die "no attempt failed"
never_says "$output" 'restart 1'
mkfifo "$live/000000000777-g0001" "$CAIRN_STORE/pipe"
try 65 'no folder' "$cairn" verify live@777
try 65 'no folder' "$cairn" verify "$live/000000000777-g0001"
try 65 'no folder' "$cairn" verify live
try 65 'no folder' "$cairn" verify pipe
try 65 'no folder' "$cairn" inspect live@777
try 65 'no folder' "$cairn" diff live@300 live@777
ok "a pipe that is named like a checkpoint or a run: 65, and nobody waits for it"
ok "planted while it trained: $failed attempts failed, the same losses"
