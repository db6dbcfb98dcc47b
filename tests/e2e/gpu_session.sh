#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 400 s
#
# A session of a GPU, the emulated one, whose trainer copies for its saver: slabs of device memory, memory of
# cuMemAlloc and plain memory that are registered by their pointers. Trainer, saver and agent are killed, the
# trainer is stopped, the driver keeps an error: what is resumed is the uninterrupted run, bit for bit.
. "$(dirname "$0")/lib.sh"
echo "seed $SEED"
export CAIRN_LIBCUDA=$BUILD/tests/cuda/libcuda-emu.so
gpu=$helpers/gpu_trainer
steps=60

begin() { # run, options of cairn run -- further arguments
        local run=$1 options=()
        shift
        while [ "$1" != -- ]; do
                options+=("$1")
                shift
        done
        shift
        start "$run" "${options[@]}" -- "$gpu" --log "$work/$run.log" --steps $steps "$@"
}
same() { # run, log of the reference: it went through to the same end
        finish 100
        expect_code 0
        same_log "$work/$2" "$work/$1.log"
        "$cairn" verify "$1" >"$work/verify.out" || die "a checkpoint is damaged"
}
# The trainer that stands still after STEP, which is a cut once libcairn has seen that the GPU is done; where CHECKPOINT
# is to be gone back to, that one is there, too.
kill_held() { # run, STEP [CHECKPOINT]
        wait_for 100 stands_at "$1" "$2"
        [ -z "${3:-}" ] || wait_for 100 has_saved "$1" "$3"
        pid_of trainer
        slay "$pid"
}
committed() { # run
        "$cairn" status "$1" --json | json runs.0.committed_step
}
is_beyond() { # run, step
        [ "$(committed "$1")" -gt "$2" ]
}

begin reference --every 20steps --
finish 100
expect_code 0

# Where the state is, who copies, and what can be saved after a death.
described=0
describe() { # pattern, further arguments of the trainer
        local run=said-$((described += 1)) pattern=$1
        shift
        begin "$run" --every 1000steps -- --step-ms 2000 "$@"
        wait_for 100 eval "\"$cairn\" status $run | holds 'rank 0 .*active'"
        try 0 "$pattern" "$cairn" status "$run"
        kill_all
}
lost='no cut after its death: [1-9][0-9]* tensors are not of cairn_alloc'
describe 'GPU 656d756c-6174-6564-2047-505500000000, the trainer copies; a cut after its death is possible'
describe "GPU 656d756c-.*, the trainer copies; $lost" --memory driver
describe "host memory, the trainer copies; $lost" --device host --memory host
ok "status says where the state is, who copies, and whether a cut is possible after a death"

# What ends with the trainer cannot be cut after its death; slabs can, by a process of their own.
for memory in slabs driver host; do
        begin "$memory" --every 10steps -- --memory "$memory" --hold-at 35 --step-ms 3
        kill_held "$memory" 35 10
        same "$memory" reference.log
        if [ "$memory" = slabs ]; then
                says "$output" 'restart 1 from step 35 .taken after its death'
        else
                says "$output" 'tensors_elsewhere=7 post_mortem=impossible'
                says "$output" 'restart 1 from step [123]0;'
        fi
        ok "$memory: killed after step 35: $(grep -o 'restart 1 .*' "$output"); bit for bit"
done

# The one of two GPUs is found by its name; where its memory cannot be opened the newest checkpoint is resumed.
CAIRN_EMU_DEVICES=2 begin second --every 10steps -- --ordinal 1 --hold-at 35
kill_held second 35
same second reference.log
says "$output" 'restart 1 from step 35 .taken after its death'
CAIRN_EMU_FAULT=cuMemImportFromShareableHandle:1:999 begin closed --every 10steps -- --hold-at 35 --step-ms 3
kill_held closed 35 10
same closed reference.log
says "$output" 'import device memory.*999'
says "$output" 'restart 1 from step [123]0;'
ok "the last state on the second of two GPUs is taken; one that cannot be opened is told, and passed over"

# What the operator converts is converted on the way to the GPU.
steps=100000
begin converted --every 10steps -- --step-ms 20
wait_step "$work/converted.log" 12 100
"$cairn" stop converted >/dev/null || die "cairn stop failed"
finish 100
steps=60
begin converted --mode resume --convert 'r0.marks=bf16' --every 10steps -- --marks bf16
same converted reference.log
says "$output" 'r0.marks f32 -> bf16'
ok "FP32 marks come back as BF16 that the operator asked for, the rest bit for bit"

# Plain memory of a session of the host goes the same way.
begin plain --every 10steps -- --device host --memory host --hold-at 35 --step-ms 3
kill_held plain 35 10
same plain reference.log
says "$output" 'restart 1 from step [123]0;'
ok "memory of malloc in a session of the host: the same bits as on the GPU"

# Killed whenever: in an update, in a copy, in a restore.
steps=150
begin long --every 50steps --
finish 100
expect_code 0
begin random --every 10steps --max-restarts 100 -- --step-ms 4 --hold-at 20 --holds 6 --hold-more 20
for round in 0 1 2 3 4 5; do
        wait_for 100 eval "[ \$(grep -Ec '(resumes step|starts) ' '$output') -gt $round ]"
        last=$("$helpers/trainlog" last "$work/random.log")
        wait_step "$work/random.log" $((last + 6 < 20 * (round + 1) ? last + 6 : 20 * (round + 1))) 100
        between 0 60
        sleep "$(printf '0.%03d' "$picked")"
        pid_of trainer
        slay "$pid"
done
same random long.log
ok "killed at 6 random instants ($(grep -c 'taken after its death' "$output" || true) last states taken): $steps steps, bit for bit"
steps=60

# The driver keeps an error: no cut can be copied, and the last state is still in the slabs.
begin broken --every 1000steps -- --break-at 41
same broken reference.log
says "$output" 'restart 1 from step 40 .taken after its death'
says "$output" 'begin: .*ILLEGAL_ADDRESS'
ok "an illegal address in step 41: the trainer is told, and resumes step 40"

# Two ranks: both are held at one step, then both copy.
steps=100000
begin ranks --nproc-per-node 2 --every 1000000steps -- --step-ms 5
wait_for 100 test -s "$work/ranks.log.1"
try 0 'step' "$cairn" snapshot ranks --wait --timeout 100
kill_all
"$cairn" verify ranks >"$work/verify.out" || die "a checkpoint is damaged"
ok "two ranks with a GPU's session each: a cut of one step, $(newest_step_of ranks)"

# A copy takes most of the time between two steps here, so that whatever is killed dies in the middle of one.
export CAIRN_EMU_LATENCY=3000
slow=(--step-ms 20 --values 100000)
begin killed --every 5steps --keep-last 1000 -- "${slow[@]}"
wait_step "$work/killed.log" 12 100
pid_of trainer
trainer=$pid
try 0 'step' "$cairn" snapshot killed --wait --timeout 100
for round in 1 2 3; do
        pid_of agent
        read -r step _ < <("$helpers/phase_kill" "$pid" "$CAIRN_STORE/killed" copy 15000 "$((SEED + round))") ||
                die "the agent was not killed in a copy"
        wait_for 100 is_beyond killed "$step"
done
for round in 1 2 3; do
        pid_of saver
        step=$(committed killed)
        slay "$pid"
        wait_for 100 is_beyond killed "$((step + 5))"
done
[ "$(pids_of trainer)" = "$trainer" ] || die "the trainer is another one"
ok "agent killed in 3 copies, saver killed 3 times: training went on in one process, snapshots too"

# Under SIGSTOP nobody copies. Whoever asks is told, and the next one goes well.
kill -STOP "$trainer"
status=0
"$cairn" snapshot killed --wait --timeout 2 >"$work/stopped.txt" 2>&1 || status=$?
[ "$status" -ne 0 ] || grep -q existed "$work/stopped.txt" || die "a stopped trainer was copied"
kill -CONT "$trainer"
step=$(committed killed)
wait_for 100 is_beyond killed "$step"
try 0 'step' "$cairn" snapshot killed --wait --timeout 100
"$cairn" stop killed >/dev/null || die "cairn stop failed"
finish 100
expect_code 0
"$cairn" verify killed >"$work/verify.out" || die "a checkpoint is damaged"
never_says "$output" '; restart '
ok "stopped and continued: a snapshot in between is void, the next one commits"

# None of them is torn: one of them, whichever, leads to the same steps again.
last=$("$helpers/trainlog" last "$work/killed.log")
cp "$work/killed.log" "$work/whole.log"
mapfile -t kept < <(steps_of killed)
between 0 $((${#kept[@]} - 1))
steps=$last
begin killed --mode resume --from "${kept[$picked]}" --every 1000steps -- --values 100000
same killed whole.log
ok "step ${kept[$picked]} of ${#kept[@]} that were kept leads to the same $last steps, bit for bit"
