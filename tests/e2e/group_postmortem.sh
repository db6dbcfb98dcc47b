#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 300 s
#
# Four ranks, checkpoints far apart, and one rank dies: the others cannot finish another step without it,
# so the memory of all of them holds one and the same step; it is committed and no finished step is lost.
# ROUNDS of random instants (6 unless given), with the optimizer's state whole on each rank and shared.
. "$(dirname "$0")/lib.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
echo "seed $SEED"
rounds=${ROUNDS:-6}
four=(--nproc-per-node 4 --every 100000steps --max-restarts 1000)
args=("${tiny[@]}" --batch 1 --global-batch 4 --dropout 0.1 --ema 0.9 --seed 3 --decay constant)
said_last() { # pattern: the newest line with it
        grep -E -- "$1" "$output" | tail -n 1
}
restarts() {
        cat "$output" 2>/dev/null | grep -Ec 'restart [0-9]+ from' || true
}

steps=$((rounds * 8 + 40)) more=$(((rounds * 8 + 36) / rounds))
run reference --nproc-per-node 4 --every 1000steps -- "${args[@]}" --steps $steps
for zero in 0 1; do
        # At a known place: in the forward pass of step 15, for longer than the test takes.
        for rank in 2 0; do
                r=place-$zero-$rank
                start $r "${four[@]}" -- sh -c 'exec "$@" $([ "$CAIRN_RESTART_COUNT" != 0 ] ||
                        echo --stall-step 15 --stall-ms 1000000 --rehearse-on '$rank')' sh \
                        "${args[@]}" --zero $zero --steps 30 --log "$work/$r.log"
                wait_step "$work/$r.log" 14 100
                wait_for 100 stands_at $r 14
                pid_of_rank $r $rank
                before=$(now_ms)
                slay "$pid"
                wait_for 100 grep -q "restart 1 from" "$output"
                took=$(($(now_ms) - before))
                says "$output" "rank $rank was killed by SIGKILL; restart 1 from step 14 \(taken after its death\)$"
                finish 100
                expect_code 0
                same_log <(head -n 30 "$work/reference.log") "$work/$r.log"
                [ "$took" -le 10000 ] || die "all were dead and settled after $took ms"
        done
        ok "GROUP-i --zero $zero: ranks 2 and 0 of 4 killed in their forward pass: step 14 committed after $took ms, 0 steps lost"

        # Anywhere. One that dies between its part of the exchange and its update is a step behind the others,
        # and they are kept from that step only if cairnd is faster: mostly it dies in what takes longest.
        r=random-$zero
        stands_still $more "$rounds" $more
        start $r "${four[@]}" -- "${still[@]}" "${args[@]}" --zero $zero --steps $steps --step-ms 40
        taken=0 step=3
        for ((round = 0; round < rounds; round++)); do
                before=$(restarts)
                wait_step "$work/$r.log" $step 100
                between 0 3
                rank=$picked
                pid_of_rank $r "$rank"
                between 0 150
                sleep "$(printf '0.%03d' "$picked")"
                slay "$pid"
                wait_for 100 eval "[ \"\$(restarts)\" -gt $before ]"
                line=$(said_last 'restart [0-9]+ from')
                ! grep -q 'taken after its death' <<<"$line" || taken=$((taken + 1))
                # Those that died inside the update count what they lose; two that did so after one and the same
                # step are taken for a crash loop, which goes on from an older checkpoint.
                grep -q 'taken after its death\|steps lost\|for it failed twice after' <<<"$line" ||
                        die "round $round: $line"
                # What status and log say until then is of the former life.
                wait_for 100 eval "[ \$(grep -c '^start ' '$output') -gt $((before + 1)) ]"
                step=$(said_last '^start ' | sed 's/^start [a-z]*, step \([0-9]*\),.*/\1/')
                step=$((step + 4 < more * (round + 2) ? step + 4 : more * (round + 2) - 1))
        done
        finish 100
        expect_code 0
        same_log "$work/reference.log" "$work/$r.log"
        "$cairn" verify $r >/dev/null || die "a checkpoint is damaged"
        mostly 50 $taken "$rounds" || die "only $taken of $rounds deaths left their last step"
        ok "--zero $zero: a random rank killed $rounds times at random instants: $taken last steps taken, the rest in or just before an update and counted"
done
