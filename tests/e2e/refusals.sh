#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# What Cairn refuses: the exit status, a sentence that names thing, reason and remedy, and a store in
# which not a byte, name, size or time has changed (RESUME-5, 6, 7, 10; docs/OPERATIONS.md).
. "$(dirname "$0")/lib.sh"
args=(--steps 30 --seed 3 --step-ms 30) # no step is scheduled before the agent is ready, or is still writing
trainer=("${tiny[@]}" "${args[@]}")

run finished --every 10steps -- "${trainer[@]}"
run open --every 10steps -- "${trainer[@]}" --stop-at 20
run damaged --every 10steps --keep-last 1 -- "${trainer[@]}" --stop-at 20
for file in "$CAIRN_STORE"/damaged/0*/rank-00000.data; do
        printf 'x' | dd of="$file" bs=1 seek=5000 conv=notrunc status=none
done
for file in "$CAIRN_STORE"/damaged/0*/COMMIT; do
        printf 'x' | dd of="$file" bs=1 seek=70 conv=notrunc status=none
done

# refused CODE PATTERN WHAT cairn's arguments...: the store is as it was.
refused() {
        local expected=$1 pattern=$2 what=$3 before after
        shift 3
        before=$(digest "$CAIRN_STORE")
        try "$expected" "$pattern" "$cairn" "$@"
        after=$(digest "$CAIRN_STORE")
        [ "$before" = "$after" ] || die "$what: the store was changed"
        [ "$(wc -c <<<"$said")" -gt 20 ] || die "$what: says only '$said'"
        ok "$what: $expected"
}
# start_refused CODE PATTERN WHAT run's options -- : no trainer may have been started either.
start_refused() {
        local expected=$1 pattern=$2 what=$3
        shift 3
        rm -f "$work/began"
        refused "$expected" "$pattern" "$what" run "$@" -- touch "$work/began"
        [ ! -e "$work/began" ] || die "$what: the command was started"
}

start_refused 73 'resume' "RESUME-7 a fresh start on a used run" --run open
start_refused 73 'finished' "RESUME-7 a fresh start on a finished run" --run finished
start_refused 66 'nothing to resume' "RESUME-5 resume of a missing run" --run missing --mode resume
start_refused 66 'finished.*--from' "RESUME-5 resume of a finished run" --run finished --mode resume
start_refused 65 'damaged|intact|verify' "RESUME-5 resume of a damaged run" --run damaged --mode resume
start_refused 65 'damaged|intact|verify' "auto on a damaged run" --run damaged --mode auto
start_refused 64 'auto never|leave one' "auto with --from" --run open --mode auto --from 10
start_refused 66 'no checkpoint of step 15' "--from a missing step" --run open --from 15
for round in 1 2 3 4 5; do # its agent waited 5 s; a busy machine does not each time
        began=$(now_ms)
        start_refused 0 'finished' "auto on a finished run does nothing" --run finished --mode auto
        took=$(($(now_ms) - began))
        [ "$took" -ge 4500 ] || break
done
[ "$took" -lt 4500 ] || die "it took $took ms to do nothing, $round times"
[ ! -e "$CAIRN_STORE/missing" ] || die "the missing run has a folder now"

# A checkpoint of another run under this run's name.
cp -a "$CAIRN_STORE/open" "$CAIRN_STORE/foreign"
start_refused 78 'another run|open' "RESUME-5 resume of a foreign run" --run foreign --mode resume

# The trainer is another one: the first difference is named.
before=$(digest "$CAIRN_STORE")
identity() { # pattern, what, trainer's options
        local pattern=$1 what=$2
        shift 2
        try 78 "$pattern" "$cairn" run --run open --mode resume -- "${trainer[@]}" --log "$work/o.log" "$@"
        ok "RESUME-6 $what: 78"
}
identity 'config\.width: 16 in the checkpoint, 32 now \(go on with the checkpoint.s\)' "another model" --width 32
[[ $said != *--override* ]] || die "an override is proposed where shapes differ: $said"
identity 'data\.(vocabulary|fingerprint)' "other data" --data LICENSE
identity 'config\.lr.*--override' "another rate (RESUME-10)" --lr 0.5
identity 'config\.steps' "another length (RESUME-10)" --steps 40
identity 'config\.beta2' "another optimizer (RESUME-10, 14)" --beta2 0.95
# Nothing of these starts is committed: the checkpoints are those from before.
[ "$(steps_of open | tr '\n' ' ')" = "10 20 " ] || die "steps of open: $(steps_of open | tr '\n' ' ')"
try 64 'no setting config.lrr; did you mean config.lr' \
        "$cairn" run --run open --mode resume --override config.lrr=0.002 -- "${trainer[@]}" --stop-at 25
try 64 'no setting nix; it has ([a-z0-9.-]+; ){12}and [0-9]+ more$' \
        "$cairn" run --run open --mode resume --override nix=1 -- "${trainer[@]}" --stop-at 25
ok "RESUME-10 a rate is accepted with --override; a setting that there is not is refused, and the one that was meant is named"
run open --mode resume --override config.lr=0.002 -- "${trainer[@]}" --stop-at 25

# Stores.
refused 69 'store' "resume in a missing store" run --run r --store "$work/nowhere" --mode resume -- true
refused 69 'store' "auto in a missing store" run --run r --store "$work/nowhere" --mode auto -- true
[ ! -e "$work/nowhere" ] || die "a missing store was created"
mkdir "$work/unmarked"
refused 69 'empty' "auto in an empty folder" run --run r --store "$work/unmarked" --mode auto -- true
[ -z "$(ls -A "$work/unmarked")" ] || die "a folder became a store"
: >"$work/unmarked/thesis.txt"
for mode in fresh resume auto; do
        refused 78 'store' "--mode $mode in a folder that holds something else" \
                run --run r --store "$work/unmarked" --mode $mode -- true
done
[ "$(ls -A "$work/unmarked")" = thesis.txt ] || die "a folder became a store"
# On purpose it may become one, which is said; what was there stays.
try 0 'unmarked is a store now; what it holds besides stays as it is' "$cairn" init "$work/unmarked"
[ "$(ls "$work/unmarked" | tr '\n' ' ')" = "CAIRN-STORE thesis.txt " ] || die "cairn init: $(ls -A "$work/unmarked")"
mkdir "$work/bare"
for folder in bare not-there; do
        try 0 "$folder is a store now$" "$cairn" init "$work/$folder"
done
ok "cairn init of a folder that holds other files says so"
: >"$work/file"
refused 78 'not a directory' "a file as a store" run --run r --store "$work/file" --mode fresh -- true
[ ! -s "$work/file" ] || die "the file was written to"
if ordinary_user; then
        "$cairn" init "$outside/store" >/dev/null
        run theirs --store "$outside/store" -- "${trainer[@]}" --stop-at 5
        chmod 000 "$outside/store"
        before=''
        [ "$(id -u)" -ne 0 ] || before=$(digest "$outside/store") # root can look nevertheless
        try 77 'store' "${as_user[@]}" "$cairn" run --run theirs --store "$outside/store" --mode auto -- true
        ok "auto on a store that cannot be listed: 77"
        chmod 555 "$outside/store"
        for mode in fresh auto; do
                try 77 'store' "${as_user[@]}" \
                        "$cairn" run --run new --store "$outside/store" --mode $mode -- true
        done
        chmod 000 "$outside/store"
        [ "$(id -u)" -ne 0 ] || [ "$(digest "$outside/store")" = "$before" ] || die "the store was changed"
        chmod 700 "$outside/store"
        ok "fresh and auto on a store that cannot be written: 77"
fi

# A living run.
start living --every 10m -- "${trainer[@]}" --stall-step 11 --stall-ms 1000000
wait_step "$work/living.log" 10 60
for mode in fresh resume auto; do
        refused 73 'running already' "a second cairn run (--mode $mode) of a living run" \
                run --run living --mode $mode -- touch "$work/began"
done
# Another runtime directory hides the agent; the run's lock does not.
mkdir -m 700 "$work/run2"
XDG_RUNTIME_DIR=$work/run2 refused 73 'living|running' "a second agent for a living run" \
        run --run living --mode auto -- touch "$work/began"
[ ! -e "$work/began" ] || die "a second trainer was started"
[ "$("$helpers/trainlog" last "$work/living.log")" -eq 10 ] || die "the living run was disturbed"
kill_all

# The command line.
refused 64 'no command .*frobnicate' "an unknown subcommand" frobnicate
refused 64 'usage' "no subcommand"
refused 64 'which command' "cairn run without a command" run --run r
refused 64 'every' "a bad --every" run --run r --every soon -- true
refused 64 'every' "--every 0steps" run --run r --every 0steps -- true
refused 64 'mode' "a bad --mode" run --run r --mode maybe -- true
refused 64 'override' "an --override without =" run --run r --override x -- true
for bad in $'config.lr=1\n' $'config.lr=1\nconfig.steps=2' $'config.lr=\e[2J1' $'config.lr=\x7f' $'config.lr=\xff' $'a\tb=1'; do
        refused 64 '--override takes UTF-8 text without control characters' "an --override with $(printf %q "$bad")" \
                run --run r --override "$bad" -- true
done
refused 64 'not .a.x1b' "what is shown of it is escaped" run --run r --mode $'a\e[2J' -- true
refused 64 'convert' "a --convert without =" run --run r --convert x -- true
refused 64 'names no type' "a --convert to no type" run --run r --convert 'x=f31' -- true
refused 127 'cannot start' "a command that is not there" run --run r -- "$work/nothing"
refused 127 'cannot start' "a command that is not in \$PATH" run --run r -- no-such-program
refused 126 'cannot start' "a command that is a folder" run --run r -- "$work"
refused 64 'run takes a value' "an empty --run" run --run '' -- true
refused 64 'store takes a value' "an empty --store" list --store=
refused 64 'frob' "an unknown option" run --frob -- true
refused 64 'init-from' "--from with --init-from" run --run r --from 3 --init-from open@10 -- true
refused 64 'init-from' "--init-from with resume" run --run r --mode resume --init-from open@10 -- true
refused 64 'name' "a run's name with a slash" run --run a/b -- true
refused 64 'keep-last' "--keep-last 0" run --run r --keep-last 0 -- true
refused 64 'nproc-per-node' "--nproc-per-node 0" run --run r --nproc-per-node 0 -- true
refused 64 'timeout' "a bad --timeout" snapshot open --timeout never
refused 69 'not running' "a snapshot of a run that does not run" snapshot open
refused 69 'not running' "stop of a run that does not run" stop open
refused 66 'missing' "list of a missing run" list missing
refused 66 'open' "inspect of a missing step" inspect open@99
refused 65 'damaged|CORRUPT|differ|✗' "verify of a damaged run" verify damaged
try 64 'no such option' "$cairn" run --run r2 -- "${trainer[@]}" --frobnicate 1
ok "the trainer's 64 is final"
mkdir "$work/removed"
(cd "$work/removed" && rmdir "$work/removed" && try 64 'was removed' "$cairn" run --run r3 --store s -- true)
ok "a current folder that was removed: 64"
