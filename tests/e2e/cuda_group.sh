#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# Two ranks, each with an emulated GPU of its own, over gloo through host memory: the losses of two ranks on
# processors, nearly; one is killed, and the run is the undisturbed one bit for bit; sharing the optimizer's state
# (--zero 1) changes no bit; the same over a scripted NCCL. That library missing is a refusal.
. "$(dirname "$0")/cuda.sh"
[ -e "$BUILD/cairn-comm-gloo.so" ] || skip "cairn-comm-gloo.so is not built: gloo's headers are missing"
export CAIRN_EMU_DEVICES=2
two=(--nproc-per-node 2)
args=(--steps 12 --dropout 0.1 --ema 0.9 --warmup 6 --eval-every 10 --eval-batches 2)
over_gloo=("${gpu[@]}" --collectives gloo "${args[@]}")

run processors "${two[@]}" --every 10m -- "${tiny[@]}" "${args[@]}"
run whole "${two[@]}" --every 10m -- "${over_gloo[@]}"
losses_agree "$work/processors.log" "$work/whole.log" 0
says "$work/whole.out" '2 ranks by gloo'
ok "CUDA two ranks on two GPUs over gloo: losses of two processors within 1e-4"

stands_still 6 # rank 0: the other one waits for it
for zero in 0 1; do
        start "killed-$zero" "${two[@]}" --every 100000steps --max-restarts 9 -- "${still[@]}" "${over_gloo[@]}" --zero $zero \
                --rehearse-on 0
        wait_step "$work/killed-$zero.log" 5 100
        pid_of trainer
        slay "$pid"
        finish 100
        expect_code 0
        says "$output" 'restart 1 from'
        same_log "$work/whole.log" "$work/killed-$zero.log"
        ok "CUDA --zero $zero: a rank is killed, the run is the undisturbed one"
done
same_state whole@12 killed-0@12

# NCCL is played by a library of ours: memory of the GPUs, in place, on the trainer's stream.
export CAIRN_LIBNCCL=$BUILD/tests/comm/libnccl-script.so
[ -e "$CAIRN_LIBNCCL" ] || die "$CAIRN_LIBNCCL is not built"
for zero in 0 1; do
        run "nccl-$zero" "${two[@]}" --every 10m -- "${gpu[@]}" "${args[@]}" --zero $zero
        says "$output" '2 ranks by NCCL'
        same_log "$work/whole.log" "$work/nccl-$zero.log"
done
start nccl-killed "${two[@]}" --every 100000steps --max-restarts 9 -- "${still[@]}" "${gpu[@]}" "${args[@]}" --rehearse-on 0
wait_step "$work/nccl-killed.log" 5 100
pid_of trainer
slay "$pid"
finish 100
expect_code 0
says "$output" 'restart 1 from'
same_log "$work/whole.log" "$work/nccl-killed.log"
ok "CUDA two ranks over a scripted NCCL, with and without --zero 1, one killed: the sums of gloo"

try 65 'libnccl|NCCL' env CAIRN_LIBNCCL=/nonexistent.so "$cairn" run --run without "${two[@]}" --max-restarts 0 -- \
        "${gpu[@]}" "${args[@]}"
ok "CUDA --collectives auto is NCCL on GPUs, and a refusal without it"
