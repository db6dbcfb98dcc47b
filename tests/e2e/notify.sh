#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 500 s
#
# A preemption notice, rehearsed (B50): planned backwards from its deadline, answered with budget and decision;
# the state is committed long before the deadline; `cairn run` ends with 75, or holds until SIGTERM; nothing is
# started under it, here or by an agent that was started meanwhile; a rebalance hint only takes a snapshot.
mounts=optional
. "$(dirname "$0")/mounts.sh"

committed_step() {
        "$cairn" status "$1" --json | json runs.0.committed_step
}
exit_json() { # run, member
        json "$2" <"$CAIRN_STORE/$1/exit.json"
}
args=(--steps 1000000 --step-ms 5 --seed 8)
run reference --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 600

try 64 'what kind of notice' "$cairn" notify demo
try 64 'when does the machine go away' "$cairn" notify demo --kind preempt
try 69 'nothing answers' "$cairn" notify demo --kind preempt --in 5s

# A hint: a snapshot, and the run goes on.
start demo --every 10m -- "${tiny[@]}" "${args[@]}"
wait_step "$work/demo.log" 30 60
try 64 'preempt or rebalance' "$cairn" notify demo --kind earthquake --in 5s
try 64 'at most 24 h' "$cairn" notify demo --kind rebalance --in 25h
try 64 'the id has' "$cairn" notify demo --kind preempt --in 5s --id $'a\nb'
try 0 'rebalance, 24 h left: a snapshot is taken now, and the run goes on' "$cairn" notify demo --kind rebalance --in 24h
has_committed() {
        [ "$(committed_step demo)" -ge 30 ]
}
wait_for 60 has_committed
step=$("$helpers/trainlog" last "$work/demo.log")
wait_step "$work/demo.log" $((step + 20)) 60
point=$(newest_step_of demo)
try 0 'taken .*on notice' "$cairn" inspect "demo@$point"
ok "rebalance: step $point is committed, training goes on"

# The notice: committed at once, ended long before the deadline, status 75.
before=$(now_ms)
try 0 '"decision": *"cut"' "$cairn" notify demo --kind preempt --in 40s --id spot-1 --json
over=$(($(now_ms) + 40500)) # by then, for the notice came before it was answered
[ "$(json stops <<<"$said")" = true ] || die "$said"
finish 60
took=$(($(now_ms) - before))
[ "$took" -lt 20000 ] || die "it took $took ms of 40 s"
expect_code 75
says "$output" 'notice \(preempt, id spot-1\): this machine goes away within .*; a snapshot is taken now.*status 75'
never_says "$output" '; restart '
last=$("$helpers/trainlog" last "$work/demo.log")
[ "$(newest_step_of demo)" = "$last" ] || die "step $last was finished and step $(newest_step_of demo) committed"
[ "$(exit_json demo code)" = 75 ] && [ "$(exit_json demo reason)" = preempted ] || die "$(cat "$CAIRN_STORE/demo/exit.json")"
ok "preempt, exit: step $last committed, status 75 after $took ms of 40 s"

# Nothing is started under it, by an agent that was not there when it came, until it is over.
try 75 'notice \(preempt, id spot-1\).*nothing is started' \
        "$cairn" run --run demo --mode resume -- "${tiny[@]}" "${args[@]}"
start demo --mode resume --on-notice hold -- "${tiny[@]}" "${args[@]}"
wait_for 60 grep -q 'holds until SIGTERM' "$output"
kill -TERM "$runner"
finish 60
expect_code 75
run other --every 10m -- "${tiny[@]}" --steps 5
while [ "$(now_ms)" -lt "$over" ]; do sleep 0.1; done
: >"$output"
run demo --mode resume --every 10m -- "${tiny[@]}" "${args[@]}" --stop-at 600
head -n 600 "$work/demo.log" >"$work/head.log"
same_log "$work/reference.log" "$work/head.log"
ok "nothing of the run starts before the deadline (75, or it holds), afterwards it resumes, bit for bit"

# Hold: committed and ended, but the process stays until SIGTERM; the run itself is free.
start held --on-notice hold --every 10m -- "${tiny[@]}" "${args[@]}"
wait_step "$work/held.log" 20 60
try 0 'then the run ends' "$cairn" notify held --kind preempt --in 30s
wait_for 60 grep -q 'holds until SIGTERM' "$output"
[ "$(newest_step_of held)" = "$("$helpers/trainlog" last "$work/held.log")" ] || die "a step was lost"
sleep 3
kill -0 "$runner" 2>/dev/null || die "it did not hold"
[ -z "$(pids_of trainer)$(pids_of agent)" ] || die "something of it still runs"
holder=$runner
mkdir -m 700 "$work/other-machine"
export XDG_RUNTIME_DIR=$work/other-machine
output=$work/free.out
"$cairn" run --run held --mode auto --every 10m -- "${tiny[@]}" "${args[@]}" --log "$work/held.log" >"$output" 2>&1 &
runner=$!
wait_for 60 grep -q '^start resume' "$output"
kill -TERM "$runner"
finish 60
expect_code 75
export XDG_RUNTIME_DIR=$work/run
runner=$holder
kill -TERM "$runner"
finish 60
expect_code 75
ok "preempt, hold: ended and committed, the process stays until SIGTERM (75); another machine resumes meanwhile"

# The agent is killed under the notice: the next one knows of it.
start lost --every 10m -- "${tiny[@]}" "${args[@]}" --update-stall-step 40 --update-stall-ms 2000
wait_step "$work/lost.log" 40 60 # its line is written, and the update is not over
"$cairn" notify lost --kind preempt --in 30s >/dev/null || die "notify failed"
pid_of agent
kill -KILL "$pid"
finish 60
expect_code 75
[ "$(newest_step_of lost)" -ge 40 ] || die "only step $(newest_step_of lost) is committed"
ok "the agent killed under a notice: its successor goes on with it, step $(newest_step_of lost), status 75"

# A trainer that does not care is ended before the deadline, its state committed.
start deaf --every 10m -- "$helpers/zoo" shapes --steps 100000 --save-at 0 --die-at 0 --step-ms 20
is_active() {
        [ "$("$cairn" status deaf --json | json runs.0.ranks.0.state)" = active ]
}
wait_for 60 is_active
before=$(now_ms)
"$cairn" notify deaf --kind preempt --in 8s >/dev/null || die "notify failed"
finish 60
took=$(($(now_ms) - before))
[ "$took" -lt 16000 ] || die "it took $took ms of 8 s"
expect_code 75
[ -n "$(newest_step_of deaf)" ] || die "nothing is committed"
ok "a trainer that does not listen: ended after $took ms of 8 s, step $(newest_step_of deaf) committed"

# Of two nodes one goes away: the group's cut is taken and all of it ends, with 75 on both. Nothing holds where the
# machine stays, and there the run may start again: it waits for others, until this machine goes away, too.
declare -A node_pid
node() { # NAME
        mkdir -p -m 700 "$work/run-$1"
        XDG_RUNTIME_DIR=$work/run-$1 "$cairn" run --run job --rdzv dir --nnodes 2 --nproc-per-node 2 --node "$1" \
                --address 127.0.0.1 --mode auto --every 10m --on-notice hold -- \
                "$helpers/lockstep" "$work/barrier" "$work/job.log" --steps 100000 >>"$work/job-$1.out" 2>&1 &
        node_pid[$1]=$!
        runner=$! output=$work/job-$1.out
}
job_step() {
        local step
        step=$(tail -n 1 "$work/job.log" 2>/dev/null | cut -d' ' -f3) || true
        echo "${step:-0}"
}
reached() { # step
        [ "$(job_step)" -ge "$1" ]
}
on() { # NAME command...: as if typed on that node
        local name=$1
        shift
        XDG_RUNTIME_DIR=$work/run-$name "$cairn" "$@"
}
for leaving in b a; do # a member, then the leader
        staying=a
        [ "$leaving" = b ] || staying=b
        node a
        node b
        wait_for 60 reached $(($(job_step) + 30))
        step=$(job_step)
        before=$(now_ms)
        on "$leaving" notify job --kind preempt --in 25s --json >"$work/notice" || die "notify failed"
        [ "$(json decision <"$work/notice")" = cut ] || die "$(cat "$work/notice")"
        runner=${node_pid[$staying]} output=$work/job-$staying.out
        finish 60
        expect_code 75
        says "$output" "a machine of the run goes away, and the run ends"
        wait_for 60 grep -q 'holds until SIGTERM' "$work/job-$leaving.out"
        took=$(($(now_ms) - before))
        [ "$took" -lt 27000 ] || die "it took $took ms of 25 s"
        [ "$(newest_step_of job)" -ge "$step" ] || die "step $step was there, $(newest_step_of job) is committed"
        [ "$(exit_json job reason)" = preempted ] || die "$(cat "$CAIRN_STORE/job/exit.json")"
        runner=${node_pid[$leaving]}
        kill -TERM "$runner"
        finish 60
        expect_code 75
        rm "$work/run-$leaving/cairn/job.notice"
        : >"$work/job-$leaving.out"
        ok "node $leaving of two goes away: both end with 75 after $took ms, step $(newest_step_of job) committed"
done
node a
is_starting() {
        on a status job | holds 'job: starting'
}
wait_for 60 is_starting
on a notify job --kind preempt --in 30s >"$work/notice" || die "notify failed"
wait_for 60 grep -q 'holds until SIGTERM' "$output"
kill -TERM "$runner"
finish 60
expect_code 75
says "$work/notice" 'there is nothing that is not committed'
ok "a node that waits for others ends on a notice"

mount_passfs || {
        echo "not shown: slow storage: $why"
        exit 0
}
# B50: storage so slow that a snapshot takes seconds: requests wait for it, a notice comes, and its time is enough
# for the one that is on the way and not for another: that one is committed, and every request is answered.
CAIRN_STORE=$mounted/store
start slow --every 10m -- "${tiny[@]}" "${args[@]}"
wait_step "$work/slow.log" 10 60
weather slow=1500
try 0 'committed' "$cairn" snapshot slow --wait
# A hint takes the snapshot that is on the way then, and tells how long the last one took.
"$cairn" notify slow --kind rebalance --json >"$work/notice" || die "notify failed"
whole=$(json need_s <"$work/notice" | awk '{ printf "%d", $1 * 1000 }')
[ "$whole" -gt 1500 ] || die "a snapshot took only $whole ms: $(cat "$work/notice")"
is_written() {
        flying=$("$cairn" status slow --json | json runs.0.snapshot.step) && [ "$flying" -gt 0 ]
}
wait_for 60 is_written
for i in 1 2 3; do
        "$cairn" snapshot slow --wait --timeout 30 --json >"$work/asked-$i" 2>&1 &
        asking[i]=$!
done
before=$(now_ms)
limit=$((whole * 3 / 2 + 2000)) # the last two seconds are for ending
"$cairn" notify slow --kind preempt --in "${limit}ms" --json >"$work/notice" || die "notify failed"
[ "$(json decision <"$work/notice")" = commit ] || die "a snapshot takes $whole ms: $(cat "$work/notice")"
finish 60
took=$(($(now_ms) - before))
weather
expect_code 75
[ "$took" -lt $((limit + 5000)) ] || die "it took $took ms of $limit"
for i in 1 2 3; do
        wait "${asking[i]}" || true
        [ -s "$work/asked-$i" ] || die "request $i was not answered"
        answered=$(json step <"$work/asked-$i" 2>/dev/null || true)
        [ -z "$answered" ] || [ "$answered" -ge "$flying" ] || die "request $i: step $answered, before it was asked for"
done
[ "$(newest_step_of slow)" -ge "$flying" ] || die "step $flying was on the way, $(newest_step_of slow) is committed"
try 0 '✓' "$cairn" verify slow --store "$back/store"
ok "B50 a snapshot takes $whole ms, the machine goes away within $limit: step $flying was on the way, $(newest_step_of slow) is committed, status 75 after $took ms"
