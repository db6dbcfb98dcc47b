#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Folders that people remove or move under a running job: the run's, the store's. Training goes on, the
# message names the path and what to do, and once the place is as it was the next checkpoint commits, without
# a restart of anything. Nothing is ever begun anew by itself.
. "$(dirname "$0")/lib.sh"

committed_step() {
        "$cairn" status demo --json | json runs.0.committed_step
}
newer_than() { # step
        [ "$(committed_step)" -gt "$1" ]
}
trains_on() {
        wait_step "$work/demo.log" $(($("$helpers/trainlog" last "$work/demo.log") + 30)) 60
}
failed_with() { # pattern
        grep -Eq "checkpoint=failed .*error=\".*$1" "$output"
}
# While files are made in it a folder may not be empty at the first try.
remove() {
        until rm -rf "$1" 2>/dev/null; do
                sleep 0.01
        done
}
tells() { # pattern: the run's last error
        "$cairn" status demo | holds -E "$1"
}
start demo --every 20steps -- "${tiny[@]}" --steps 1000000 --step-ms 3
wait_step "$work/demo.log" 45 60
pid_of trainer
trainer_pid=$pid

# The run's folder: one checkpoint fails, the next one makes the folder again.
remove "$CAIRN_STORE/demo"
wait_for 60 failed_with "($CAIRN_STORE/demo: the run's folder was removed|the attempt is gone: removed|somebody removes files)"
wait_for 60 grep -q 'folder=made_again' "$output"
wait_for 60 newer_than "$(committed_step)"
try 0 '' "$cairn" verify demo
gone "$trainer_pid" && die "the trainer was ended"
ok "the run's folder is removed: $(grep -m 1 -o 'error=".*' "$output"); the next checkpoint commits"

# The store: nothing is made in its place. With a marker again the next checkpoint commits.
remove "$CAIRN_STORE"
wait_for 60 tells "$CAIRN_STORE: the store is gone while the run goes on: .*cairn init"
trains_on
[ ! -e "$CAIRN_STORE" ] || die "something was made at the path of the store"
try 73 'the store is gone .*put it back' "$cairn" snapshot demo --wait
told=$said
mkdir "$CAIRN_STORE"
try 73 'the store is gone' "$cairn" snapshot demo --wait
try 0 '' "$cairn" init "$CAIRN_STORE"
try 0 'step' "$cairn" snapshot demo --wait
try 0 '' "$cairn" verify demo
gone "$trainer_pid" && die "the trainer was ended"
ok "the store is removed: $told; after cairn init a snapshot commits"

# A store that is moved away is not written to; its path is.
mv "$CAIRN_STORE" "$work/elsewhere"
wait_for 60 tells "$CAIRN_STORE/demo: .*not at its path any more, but at $work/elsewhere/demo"
trains_on
says <("$cairn" status demo) "but at $work/elsewhere/demo"
before=$(committed_step)
try 73 "but at $work/elsewhere/demo: move or mount it back" "$cairn" snapshot demo --wait
mv "$work/elsewhere" "$CAIRN_STORE"
try 0 'step' "$cairn" snapshot demo --wait
wait_for 60 newer_than "$before"
try 0 '' "$cairn" verify demo
ok "the store is moved: refused with where it is; back at its path, a snapshot commits"

# A copy that is put back in place of what was removed is taken.
kill -STOP "$trainer_pid" # so that it can be copied as it stands
is_still() {
        [ "$("$cairn" status demo --json | json runs.0.snapshot)" = null ] &&
                [ -z "$(find "$CAIRN_STORE/demo" -maxdepth 1 -name '.trash-*')" ] &&
                [ "$(steps_of demo | wc -l)" -le 3 ]
}
wait_for 60 is_still
cp -a "$CAIRN_STORE" "$work/copy"
remove "$CAIRN_STORE"
mv "$work/copy" "$CAIRN_STORE"
before=$(committed_step)
kill -CONT "$trainer_pid"
wait_for 60 newer_than "$before"
try 0 '' "$cairn" verify demo
ok "a copy in place of the removed store is taken"

# A death: the last state is saved where the folder can be made again, and training goes on from it.
# Outside its update, with a state that is in no checkpoint.
stopped_between() {
        kill -STOP "$trainer_pid"
        "$cairn" status demo --json >"$work/status"
        [ "$(json runs.0.ranks.0.phase <"$work/status")" = stable ] &&
                [ "$(json runs.0.snapshot <"$work/status")" = null ] &&
                [ "$(json runs.0.ranks.0.seq <"$work/status")" -gt "$(json runs.0.ranks.0.committed_seq <"$work/status")" ] &&
                return
        kill -CONT "$trainer_pid"
        return 1
}
wait_for 60 stopped_between
remove "$CAIRN_STORE/demo"
kill -KILL "$trainer_pid"
died_at=$("$helpers/trainlog" last "$work/demo.log")
wait_step "$work/demo.log" $((died_at + 30)) 60
says "$output" 'restart 1'
[ -n "$(newest_of demo)" ] || die "nothing can be resumed"
ok "the run's folder is removed and the trainer killed: its last state makes the folder again"

kill -INT "$runner"
finish 60

# The end of a run whose store is gone says so: it is not "nothing to resume" (66).
start end --every 1000steps -- "${tiny[@]}" --steps 1000000 --step-ms 5
wait_step "$work/end.log" 20 60
remove "$CAIRN_STORE"
try 73 "nothing is committed: .*the store is gone.*put it back" "$cairn" stop end --deadline 3
told=$said
finish 60
expect_code 73
ok "cairn stop of a run without its store: $told; exit 73"
