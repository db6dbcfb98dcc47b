# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# mounts.sh - file systems for tests; sourced instead of lib.sh, which it sources. The script runs once more
# in a mount namespace of its own: whatever it mounts goes, loop devices included, with its last process,
# however it ends.
#
#     . "$(dirname "$0")/mounts.sh"
#     mount_passfs || skip "$why"      # $mounted: a store that fails on command; $back: its real folder,
#                                      # a new one, or the one that is named
#     weather write=EIO on=.data       # from now on (passfs.c lists the words); without words: all is well
#     mount_image ext4 64              # $mounted: a file system of 64 MB in a file; false, $why: not here
#     mount_tmpfs 8m                   # $mounted
#
# A script that shows something without them, too, sets mounts=optional before: then it runs everywhere, and
# mount_passfs says why not.

if [ -z "${CAIRN_E2E_MOUNTS:-}" ]; then
        CAIRN_E2E_MOUNTS=$$
        export CAIRN_E2E_MOUNTS
        if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
                exec unshare -m --propagation private bash "$0" "$@"
        fi
        CAIRN_E2E_MOUNTS='file systems cannot be mounted here (root and mount namespaces are needed)'
        if [ "${mounts:-}" != optional ]; then
                echo "$CAIRN_E2E_MOUNTS"
                exit 77
        fi
fi
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

passfs='' mounted='' back='' why='' mount_count=0

next_mount() {
        mount_count=$((mount_count + 1))
        mounted=$work/mount-$mount_count
        mkdir "$mounted"
}
mount_passfs() { # [folder]
        why=$CAIRN_E2E_MOUNTS
        case $why in *[!0-9]*) return 1 ;; esac
        why="passfs is not built: libfuse is missing (./setup check)"
        [ -x "$helpers/passfs" ] || return 1
        why="/dev/fuse is not there: passfs cannot be mounted"
        [ -w /dev/fuse ] || return 1
        next_mount
        back=${1:-$work/back-$mount_count}
        mkdir -p "$back"
        : >"$work/weather"
        "$helpers/passfs" "$work/weather" "$back" "$mounted" >"$work/passfs.log" 2>&1 &
        passfs=$!
        disown "$passfs"
        local limit=$(($(now_ms) + 60000))
        until mountpoint -q "$mounted"; do
                why="passfs cannot be mounted: $(tail -n 1 "$work/passfs.log")"
                ! gone "$passfs" || return 1
                [ "$(now_ms)" -lt "$limit" ] || die "passfs is not mounted within 60 s"
                sleep 0.02
        done
}
# Replaced by rename: passfs never sees half of it.
weather() {
        echo "$*" >"$work/weather.new"
        mv "$work/weather.new" "$work/weather"
}
mount_image() { # type, megabytes [mount options]
        local image=$work/image-$((mount_count + 1)) options=loop${3:+,$3}
        why="mkfs.$1 is missing"
        command -v "mkfs.$1" >/dev/null || return 1
        truncate -s "$2M" "$image"
        why=$("mkfs.$1" -q "$image" 2>&1) || return 1
        next_mount
        why=$(mount -t "$1" -o "$options" "$image" "$mounted" 2>&1 | head -n 1 | sed 's/.*: wrong/wrong/')
        mountpoint -q "$mounted"
}
mount_tmpfs() { # size
        next_mount
        mount -t tmpfs -o "size=$1,mode=755" tmpfs "$mounted"
}

# A hang must not outlive the script: what waits in it could not be killed.
calm_down() {
        local status=$?
        weather
        [ -z "$passfs" ] || kill -KILL "$passfs" 2>/dev/null || true
        set +e
        (exit "$status")
        clean_up
}
trap calm_down EXIT
