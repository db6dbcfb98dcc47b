# shellcheck shell=bash
# shellcheck disable=SC2034 # used by the scripts
# SPDX-License-Identifier: Apache-2.0
#
# lib.sh - what the end-to-end scripts share; sourced, never run. A script gets a private folder, store
# and runtime directory; everything it starts carries CAIRN_E2E=<that folder> in its environment, and
# whatever of it is left at the end is killed by its process id. Every wait has a deadline.
#
#     . "$(dirname "$0")/lib.sh"
#     start demo --every 10steps -- "${tiny[@]}" --steps 50    # `cairn run` in the background: $runner
#     wait_step "$work/demo.log" 20 10                          # within 10 s
#     finish 30; expect_code 0                                  # its end, within 30 s: $code, $output
#     try 66 'has no checkpoint' "$cairn" run --mode resume -- true
#     ok "RESUME-5 resume of a missing run is refused"

set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export BUILD
cairn=$BUILD/cairn
train=$BUILD/cairn-train
helpers=$BUILD/tests/e2e

name=$(basename "$0" .sh)
work=$(mktemp -d "${TMPDIR:-/tmp}/$name-XXXXXX")
export CAIRN_E2E=$work CAIRN_STORE=$work/store XDG_RUNTIME_DIR=$work/run
mkdir -m 700 "$work/run"
unset CAIRN_RUN CAIRN_SOCKET CAIRN_FAULT CAIRN_FAULT_ONCE CAIRN_DEBUG_MUTATION CAIRN_LOG RANK LOCAL_RANK WORLD_SIZE \
        LOCAL_WORLD_SIZE MASTER_PORT "${!SLURM@}"
runner='' code='' output='' outside=''

skip() {
        echo "$*"
        exit 77
}
ok() {
        echo "ok $*"
}
# Says what went wrong and shows the end of what the programs said.
die() {
        local file
        echo "✗ $*"
        for file in "$work"/*.out; do
                [ -s "$file" ] || continue
                echo "--- ${file##*/}"
                tail -n 25 "$file"
        done
        exit 1
}

# For what an ordinary user does where the test runs as root: $outside is a folder that others can enter
# (private ones above $work would hide it), with a home and a runtime directory of that user's, and
# as_user the command prefix. False where that cannot be had.
ordinary_user() {
        outside=$(mktemp -d "/tmp/$name-XXXXXX") && chmod 755 "$outside"
        mkdir -m 700 "$outside/home" "$outside/run"
        as_user=(env HOME="$outside/home" XDG_RUNTIME_DIR="$outside/run" TMPDIR="$outside/home")
        [ "$(id -u)" -eq 0 ] || return 0
        command -v setpriv >/dev/null || return 1
        chown 65534:65534 "$outside/home" "$outside/run"
        as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups "${as_user[@]}")
        "${as_user[@]}" test -x "$cairn"
}

# Process ids of what this test started and did not wait for.
left_over() {
        local file pid
        # shellcheck disable=SC2013
        for file in $(grep -lzxF "CAIRN_E2E=$work" /proc/[0-9]*/environ 2>/dev/null); do
                pid=${file#/proc/}
                pid=${pid%/environ}
                [ "$pid" = $$ ] || echo "$pid"
        done
        return 0
}
clean_up() {
        local status=$? pid round
        trap '' INT TERM HUP
        exec 2>/dev/null # the shell's notes about what it sees killed
        for round in 1 2 3; do # what is being started may escape the first look
                for pid in $(left_over); do
                        kill -KILL "$pid" 2>/dev/null || true
                done
        done
        if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ -n "${KEEP:-}" ]; then
                echo "kept: $work ($round)"
        else
                chmod -R u+rwX "$work" 2>/dev/null || true
                rm -rf "$work"
        fi
        [ -z "$outside" ] || rm -rf "$outside"
        exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

for program in "$cairn" "$BUILD/cairnd" "$train" "$helpers/trainlog" "$helpers/json" "$helpers/process"; do
        [ -x "$program" ] || skip "$program is not built"
done

# A corpus and a model so small that a step takes about a millisecond.
seq 100000 104000 >"$work/text"
tiny=("$train" --data "$work/text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --quiet)

# RANDOM follows from it; SEED=N repeats a run.
SEED=${SEED:-$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}
RANDOM=$((SEED % 32768))
between() { # low, high: sets $picked
        picked=$(($1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1)))
}

# Deaths at random instants: a share is asked for where there are enough of them, of few that there is one.
mostly() { # percent, count, of
        [ "$2" -gt 0 ] && { [ "$3" -lt 50 ] || [ $(($2 * 100)) -ge $(($3 * $1)) ]; }
}

now_ms() {
        local now=${EPOCHREALTIME/[.,]/}
        echo $((now / 1000))
}

# A command prefix for cairn-train: in its first LIVES (1) lives it stands still in step STEP, before its update, so
# that whoever is to kill it before its end finds it, however slow he is; in each life MORE steps later than in the
# one before, for deaths at one and the same step are a crash loop.
stands_still() { # STEP [LIVES MORE]: sets ${still[@]}
        # shellcheck disable=SC2016 # the trainer's shell
        still=(sh -c 'step=$(($1 + CAIRN_RESTART_COUNT * $3)) lives=$2; shift 3
                [ "$CAIRN_RESTART_COUNT" -ge "$lives" ] || set -- "$@" --stall-step "$step" --stall-ms 1000000
                exec "$@"' sh "$1" "${2:-1}" "${3:-0}")
}

# start RUN [cairn run's options] -- command: the log is $work/RUN.log if the command is cairn-train.
start() {
        local run=$1 options=() command=()
        shift
        while [ "$1" != -- ]; do
                options+=("$1")
                shift
        done
        shift
        command=("$@")
        [[ " $* " != *" $train "* || " $* " == *" --log "* ]] || command+=(--log "$work/$run.log")
        output=$work/$run.out
        "$cairn" run --run "$run" "${options[@]}" -- "${command[@]}" >>"$output" 2>&1 &
        runner=$!
}
# The background command's end within so many seconds: its status is $code.
finish() { # seconds
        local limit=$(($(now_ms) + $1 * 1000))
        while kill -0 "$runner" 2>/dev/null; do
                [ "$(now_ms)" -lt "$limit" ] || die "cairn run did not end within $1 s"
                sleep 0.02
        done
        code=0
        wait "$runner" || code=$?
}
expect_code() { # what finish saw
        [ "$code" -eq "$1" ] || die "cairn run ended with $code, not with $1"
}
# run RUN options -- command: start and finish; expects success.
run() {
        start "$@"
        finish 110
        expect_code 0
}

# wait_step LOG STEP SECONDS: its number is printed to $reached. Fails early when $runner ends.
wait_step() {
        reached=$("$helpers/trainlog" wait "$1" "$2" "$3" "$runner") ||
                die "step $2 was not reached in ${1##*/} within $3 s (last: ${reached:-none})"
}
# A node is known to the others in that run's folder: its lease lies there.
has_joined() { # FOLDER NODE
        compgen -G "$1/rendezvous/member-$2-*"
}
# A cut that is due while the former one is still written is left out. For each of these steps to be in the store the
# trainer is stopped after it, outside of what makes it, until it is there.
save_each() { # RUN GENERATION STEP...
        local run=$1 generation=$2 step name
        shift 2
        pid_of trainer
        for step; do
                wait_step "$work/$run.log" $((step + 1)) 100
                kill -STOP "$pid" || die "the trainer ended by itself"
                printf -v name '%012d-g%04d' "$step" "$generation"
                wait_for 100 test -e "$CAIRN_STORE/$run/$name"
                kill -CONT "$pid"
        done
}
# wait_for SECONDS command...: until the command succeeds. What is waited for has come at once or never: the seconds
# are for the slowest machine, and cost nothing.
wait_for() {
        local limit=$(($(now_ms) + $1 * 1000))
        shift
        until "$@" >/dev/null 2>&1; do
                [ "$(now_ms)" -lt "$limit" ] || die "not within the time: $*"
                sleep 0.02
        done
}
gone() {
        ! kill -0 "$1" 2>/dev/null
}
ended() { # process: not there, or dead and not yet reaped
        ! grep -Eq '^State:[[:space:]]+[^ZX]' "/proc/$1/status" 2>/dev/null
}
# SIGKILL, and the death: a signal is only sent, and whoever looked for the next life now could find this one again.
slay() { # process
        kill -KILL "$1" || die "process $1 ended by itself"
        wait_for 60 ended "$1"
}

# An agent: its socket's file is there before anybody listens. It serves no such run, else nobody answers (69).
answers() { # SOCKET
        local status=0
        CAIRN_SOCKET=$1 "$cairn" status nobody >/dev/null 2>&1 || status=$?
        [ "$status" -eq 66 ]
}

# The process ids of a kind (trainer, agent, saver, store) among the runner's descendants.
pids_of() {
        "$helpers/process" "$runner" "$1"
}
pid_of() { # kind: waits for one; sets $pid
        local limit=$(($(now_ms) + 60000))
        until pid=$(pids_of "$1" | head -n 1) && [ -n "$pid" ]; do
                [ "$(now_ms)" -lt "$limit" ] || die "there is no $1 process"
                sleep 0.02
        done
}
# What each kind of the runner's processes has held in memory so far, KiB at the most: ${peak[KIND]}. Called again
# and again while they live; `peak=()` begins anew.
declare -A peak
note_peaks() {
        local kind pid kib
        for kind in agent saver store trainer; do
                for pid in $(pids_of "$kind"); do
                        kib=$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null || true)
                        [ "${kib:-0}" -le "${peak[$kind]:-0}" ] || peak[$kind]=$kib
                done
        done
}
# KIND KIB: it was seen, and held no more than that.
expect_peak() {
        [ "${peak[$1]:-0}" -gt 0 ] || die "no $1 was seen"
        [ "${peak[$1]}" -le "$2" ] || die "the $1 held ${peak[$1]} KiB, $2 at the most are due"
}
pid_of_rank() { # RUN RANK: waits for it; sets $pid
        local limit=$(($(now_ms) + 60000))
        until pid=$(rank_says "$1" "$2" pid) && [ "${pid:-0}" -gt 0 ]; do
                [ "$(now_ms)" -lt "$limit" ] || die "rank $2 of $1 is not there"
                sleep 0.02
        done
}
# SIGKILL to `cairn run` and everything below it: the machine is gone.
kill_all() {
        disown "$runner" # no note about its end
        "$helpers/process" "$runner" kill-tree
        wait_for 60 gone "$runner"
}

# try CODE PATTERN command...: exit status and what it says (extended regular expression, both streams).
try() {
        local expected=$1 pattern=$2 status=0
        shift 2
        said=$(timeout -k 5 110 "$@" 2>&1) || status=$?
        [ "$status" -eq "$expected" ] ||
                die "exit status $status, not $expected: ${*##*/}"$'\n'"    $said"
        grep -Eq -- "$pattern" <<<"$said" ||
                die "does not say '$pattern': ${*##*/}"$'\n'"    $said"
}
json() { # path; JSON on standard input
        "$helpers/json" "$1"
}
# Behind a pipe: grep -q would end whoever still writes, of which pipefail makes a failure.
holds() { # grep's arguments
        grep -c "$@" >/dev/null
}
says() { # file, pattern
        grep -Eq -- "$2" "$1" || die "${1##*/} does not say '$2'"
}
never_says() {
        ! grep -Eq -- "$2" "$1" || die "${1##*/} says '$2'"
}

# The steps of a run's checkpoints on the lineage, ascending.
steps_of() {
        "$cairn" list "$1" --json | "$helpers/json" 'checkpoints.*.lineage&attempt&step' |
                awk '$1 == "true" && $2 == "false" { print $3 }'
}
# The newest that a resume would take: also an attempt that the next start commits (".pending-…").
newest_of() {
        "$cairn" list "$1" --json | "$helpers/json" 'checkpoints.*.newest&checkpoint' |
                awk '$1 == "true" { print $2 }'
}
newest_step_of() {
        "$cairn" list "$1" --json | "$helpers/json" 'checkpoints.*.newest&step' |
                awk '$1 == "true" { print $2 }'
}
# A resume would take that step or a later one.
has_saved() { # RUN STEP
        [ "$(newest_step_of "$1")" -ge "$2" ]
}
# A rank's field in `cairn status`: step, phase, pid ... Nothing and false while there is no such rank.
rank_says() { # RUN RANK FIELD
        "$cairn" status "$1" --json 2>/dev/null | "$helpers/json" "runs.0.ranks.$2.$3"
}
# All its ranks of this machine have published that step and make no other now.
stands_at() { # RUN STEP
        local said
        said=$("$cairn" status "$1" --json | "$helpers/json" 'runs.0.ranks.*.step&phase') &&
                ! grep -vx "$2 stable" <<<"$said"
}

# The host values of a checkpoint, a line each, without the clock; and its tensors with their checksums.
values_of() {
        "$cairn" inspect "$1" --json | "$helpers/json" states.0.values | tr ',' '\n' |
                grep -v time.seconds
}
tensors_of() {
        "$cairn" inspect "$1" --tensors --json |
                "$helpers/json" 'tensors.*.name&role&dtype&stored_dtype&shape&true_step&extents' |
                sed 's/"offset":[0-9]*,*//g'
}
# Two checkpoints hold the same state, bit for bit.
same_state() {
        values_of "$1" >"$work/state-1" && tensors_of "$1" >>"$work/state-1"
        values_of "$2" >"$work/state-2" && tensors_of "$2" >>"$work/state-2"
        [ "$(wc -l <"$work/state-1")" -gt 10 ] || die "$1 holds next to nothing"
        cmp -s "$work/state-1" "$work/state-2" ||
                die "$1 and $2 differ: $(diff "$work/state-1" "$work/state-2" | head -n 4)"
}

# Names, types, modes, sizes, times and contents of everything below a folder.
digest() {
        (cd "$1" && find . -printf '%P %y %m %s %T@\n' | sort && find . -type f -print0 | sort -z |
                xargs -0r sha256sum) | sha256sum
}

# The same lines but for "seconds".
same_log() { # reference, other
        "$helpers/trainlog" compare "$1" "$2" || die "${2##*/} differs from ${1##*/}"
}
