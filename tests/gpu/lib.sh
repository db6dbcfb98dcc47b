# shellcheck shell=bash
# shellcheck disable=SC2034 # used by the scripts
# SPDX-License-Identifier: Apache-2.0
#
# lib.sh - what the scripts of tests/gpu share; sourced by what tests/gpu/run started. A private store and
# runtime directory in $TMPDIR, which the runner empties, ending what still runs.
set -euo pipefail
cairn=$BUNDLE/bin/cairn train=$BUNDLE/bin/cairn-train
mkdir -m 700 "$TMPDIR/run"
export XDG_RUNTIME_DIR=$TMPDIR/run CAIRN_STORE=$TMPDIR/store
unset CAIRN_RUN CAIRN_SOCKET CAIRN_FAULT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT
brief=${CAIRN_GPU_BRIEF:-}

fail() {
        echo "$*"
        exit 1
}
skip() {
        echo "$*"
        exit 77
}
figure() { # name, value, unit
        echo "figure $1 $2 ${3:-}"
}
choose() { # whole, brief
        if [ -n "$brief" ]; then echo "$2"; else echo "$1"; fi
}
# Within so many seconds the command succeeds.
wait_for() { # seconds, command ...
        local end=$(($1 * 10 + ${EPOCHREALTIME/[.,]/} / 100000))
        shift
        until "$@" >/dev/null 2>&1; do
                [ $((${EPOCHREALTIME/[.,]/} / 100000)) -lt "$end" ] || return 1
                sleep 0.05
        done
}
