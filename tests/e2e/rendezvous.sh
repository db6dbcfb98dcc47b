#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 900 s
#
# Agents that meet, in a folder and at a real etcd (tests/e2e/rendezvous.c says what each scenario does).
mounts=optional
. "$(dirname "$0")/mounts.sh"
command -v etcd >/dev/null || skip "etcd is not installed (./setup check)"

scenario() { # name kind folder [weather]
        mkdir -p "$work/$1-$2"
        "$helpers/rendezvous" "$1" "$2" "$3" ${4:+"$4"} && return
        tail -n 5 "$3/etcd.log" 2>/dev/null || true
        die "$1 $2"
}
# These mostly wait: side by side.
for kind in dir etcd; do
        scenario race "$kind" "$work/race-$kind"
        pids=()
        for name in loss values names; do
                scenario "$name" "$kind" "$work/$name-$kind" &
                pids+=($!)
        done
        if [ "$kind" = etcd ]; then
                for name in restart hang lost rubbish; do
                        scenario "$name" etcd "$work/$name-etcd" &
                        pids+=($!)
                done
        else
                scenario folder dir "$work/folder-dir" &
                pids+=($!)
                if mount_passfs; then
                        mkdir "$mounted/jobs"
                        scenario stuck dir "$mounted/jobs" "$work/weather" &
                        pids+=($!)
                else
                        echo "not shown here: a folder whose storage hangs ($why)"
                fi
        fi
        for pid in "${pids[@]}"; do
                wait "$pid"
        done
done
