#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# What has gone wrong for others with two ranks: the order of the second epoch, a rank that never comes or hangs,
# packets that are dropped, a back end that is not there, memory that is short on one rank right after a resume.
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
two=(--nproc-per-node 2)

# B18: stopped in the middle of the second epoch, and once more.
head -c 3000 "$work/text" >"$work/short"
args=("${tiny[@]/"$work/text"/"$work/short"}" --steps 130 --dropout 0.1)
ids_of() { # sample log: "position sample", of both ranks, as they were used last
        sort -n -u "$1".*
}
run whole "${two[@]}" -- "${args[@]}" --sample-log "$work/whole.samples"
for step in 62 75 130; do
        run parts "${two[@]}" --mode auto -- "${args[@]}" --sample-log "$work/parts.samples" --stop-at $step
done
cmp -s <(ids_of "$work/whole.samples") <(ids_of "$work/parts.samples") || die "the samples differ after a stop"
same_log "$work/whole.log" "$work/parts.log"
[ "$(values_of parts@75 | sed -n 's/.*"data.epoch"://p' | tr -d '"{}')" = 1 ] || die "step 75 is not in the second epoch"
ids_of "$work/whole.samples" | cut -d' ' -f2 >"$work/ids"
count=$(($(sort -n "$work/ids" | tail -n 1) + 1)) # an epoch's
for epoch in 0 1; do
        sed -n "$((epoch * count + 1)),$(((epoch + 1) * count))p" "$work/ids" >"$work/epoch-$epoch"
        [ "$(sort -u "$work/epoch-$epoch" | wc -l)" -eq "$count" ] || die "epoch $epoch has a sample twice, or lacks one"
done
! cmp -s "$work/epoch-0" "$work/epoch-1" || die "both epochs have one order"
ok "B18 RESUME-13 two ranks stopped twice in the second epoch: the same samples and losses, each of $count once an epoch"

# One rank is stopped: the other gives up within its limit and says on whom, in what and when it waited.
args=("${tiny[@]}" --steps 40 --dropout 0.1)
run reference "${two[@]}" --every 10steps -- "${args[@]}"
stands_still 13 # rank 1, and says so to the one that waits for it, until it is stopped
start hangs "${two[@]}" --every 10steps -- "${still[@]}" "${args[@]}" --rehearse-on 1 --collective-timeout 8
wait_step "$work/hangs.log" 12 100
pid_of_rank hangs 1
before=$(now_ms)
kill -STOP "$pid"
wait_for 100 grep -Eq 'rank 0: [a-z_]+ [0-9]+ .*rank 1.*waited [0-9.]+ s' "$output"
took=$(($(now_ms) - before))
[ $took -le 13000 ] || die "known after $took ms"
wait_for 100 grep -q 'restart 1 from' "$output"
finish 100
expect_code 0
same_log "$work/reference.log" "$work/hangs.log"
ok "RESUME-38 a rank is stopped: the other names rank, operation and its number, after $took ms (limit 8 s); losses equal"

# B24: a rank never comes; the wait can be ended; packets between the ranks are dropped.
start missing "${two[@]}" --max-restarts 0 -- sh -c '[ "$RANK" = 0 ] || exec sleep 1000; exec "$@"' sh \
        "${args[@]}" --bootstrap-timeout 3 --log "$work/missing.log"
before=$(now_ms)
finish 100
took=$(($(now_ms) - before))
expect_code 124
says "$output" 'rank 0: init 1 .*missing: rank 1 \(never seen\); waited ([3-9]|1[0-9])'
[ $took -lt 30000 ] || die "a missing rank took $took ms" # the one that sleeps has 5 s to end
ok "B24 (a) a rank that never comes: named after 3 s, all is over after $took ms"
start waiting "${two[@]}" -- sh -c '[ "$RANK" = 0 ] || exec sleep 1000; exec "$@"' sh \
        "${args[@]}" --bootstrap-timeout 60 --log "$work/waiting.log"
pid_of_rank waiting 0
sleep 1 # mostly it waits then; what comes before that ends the wait, too
kill -TERM "$runner"
finish 100
expect_code 75
says "$output" 'rank 0: .*asked to end'
ok "B24 SIGTERM ends the wait for a rank: 75"
cat >"$work/dropped" <<'EOF'
set -e
ip link set lo up
ip link add name here type veth peer name void
ip link set here up
ip link set void up
ip addr add 10.9.0.$((RANK + 1))/24 dev here
ip neigh add 10.9.0.$((2 - RANK)) lladdr 02:00:00:00:00:09 dev here nud permanent
exec "$@" --interface 10.9.0.$((RANK + 1))
EOF
if unshare -n sh -c 'ip link add name here type veth peer name void' 2>/dev/null; then
        start dropped "${two[@]}" --max-restarts 0 -- unshare -n sh "$work/dropped" \
                "${args[@]}" --bootstrap-timeout 3 --log "$work/dropped.log"
        finish 100
        expect_code 124
        # The first one to give up ends the other.
        says "$output" 'rank (0: init 1 .* got no further with rank 1|1: init 1 .* got no further with rank 0) .*waited ([3-9]|1[0-9])'
        [ ! -s "$work/dropped.log" ] || die "a step was made"
        ok "B24 (c) packets between the ranks are dropped: one names the other after 3 s, all end"
else
        echo "NOT SHOWN B24 (c): network namespaces need root"
fi

# The back end is named, and there is no other.
start absent "${two[@]}" --max-restarts 0 -- env CAIRN_GLOO_PLUGIN=/nowhere.so "${args[@]}" --log "$work/absent.log"
finish 100
[ "$code" -ne 0 ] || die "trained without a back end"
says "$output" 'rank [01]: .*no gloo: .CAIRN_GLOO_PLUGIN names it, but it cannot be read'
[ ! -s "$work/absent.log" ] || die "a step was made"
says "$work/reference.out" '^2 ranks by gloo [0-9.]+'
ok "RESUME-37 the back end is in the log; one that cannot be loaded is an error that names it"

# Memory is short on one rank in the first resumed step: as if all had begun with the smaller micro-batch there.
args=("${tiny[@]}" --global-batch 8 --dropout 0.1 --ema 0.9 --steps 40)
for name in short half; do
        run $name "${two[@]}" --every 10steps -- "${args[@]}" --batch 4 --stop-at 20
done
run short "${two[@]}" --mode resume --every 10steps -- "${args[@]}" --batch 4 --oom-step 21 --rehearse-on 1
says "$work/short.out" 'memory is short on rank 1 after step 20: micro-batches of 2 instead of 4, the global batch stays'
run half "${two[@]}" --mode resume --every 10steps -- "${args[@]}" --batch 2
same_log "$work/half.log" "$work/short.log"
cmp -s <("$cairn" inspect half@40 --tensors --json | json 'tensors.*.name&extents') \
        <("$cairn" inspect short@40 --tensors --json | json 'tensors.*.name&extents') ||
        die "the state after it is another one"
ok "RESUME-40 memory short on one rank in the first resumed step: both halve; bits as of a resume with the half"
