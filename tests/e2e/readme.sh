#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 200 s
#
# The commands that the README and docs/kubernetes.yaml show are ones that `cairn` takes: each is run as written
# in a folder of its own, where no agent answers; whatever else becomes of it, it is not a usage error.
. "$(dirname "$0")/lib.sh"
root=$PWD
mkdir "$work/bin" "$work/here"
cd "$work/here"
export CAIRN_SOCKET=$work/no-agent.sock
# `cairn` as the reader has it, but never for long; the script that the Slurm section shows runs without Slurm.
cat >"$work/bin/cairn" <<EOF
#!/bin/bash
code=0
timeout -s KILL 2 "$cairn" "\$@" >"$work/last.out" 2>&1 || code=\$?
echo "\$code cairn \$*" >>"$work/commands"
[ \$code -ne 64 ] || cat "$work/last.out" >>"$work/commands"
exit \$code
EOF
cat >"$work/bin/srun" <<'EOF'
#!/bin/bash
SLURM_JOB_ID=1 SLURM_JOB_NAME=mine SLURMD_NODENAME=n1 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 exec "$@"
EOF
printf '#!/bin/sh\n' | tee "$work/bin/scontrol" "$work/bin/kubectl" my-trainer >/dev/null
chmod +x "$work"/bin/* my-trainer
PATH=$work/bin:$PATH

# What begins with four blanks below a heading and names `cairn`; `/shared` and `/data` would be made by root.
section() { # heading
        sed -n "/^## $1\$/,/^## /p" "$root/README.md" | grep '^    ' | cut -c5- |
                sed "s|/shared|$work/shared|g; s|--dir /data|--dir $work/here --bytes 1M|"
}
mkdir "$work/shared"
for heading in 'Use it' 'Two ranks here' 'Two nodes' 'Slurm' 'Kubernetes'; do
        section "$heading" | sed '/^cairn_open/,$d' >"$work/script"
        [ -s "$work/script" ] || die "the README has no commands below '$heading'"
        bash "$work/script" >/dev/null 2>&1 || true
done
yaml_commands() {
        sed -n 's/.*command: \[\([^]]*\)\].*/\1/p' "$root/docs/kubernetes.yaml" | tr -d ',"'
}
yaml_commands >"$work/script"
bash "$work/script" >/dev/null 2>&1 || true

count() { # pattern
        grep -cE "^[0-9]+ $1" "$work/commands" || true
}
[ "$(count 'cairn ')" -ge 17 ] || die "only $(count 'cairn ') commands were found"
[ "$(count 'cairn run .*--rdzv')" -eq 4 ] || die "not all groups were tried"
[ "$(count 'cairn drain')" -eq 1 ] || die "the preStop hook was not tried"
! grep -A3 '^64 ' "$work/commands" || die "the README shows a command that is a usage error"
! grep -E '^12[67] ' "$work/commands" || die "the README shows a command that is not there"
"$cairn" run --no-such-option -- true >/dev/null 2>&1 && die "a wrong option passes"
ok "the $(count 'cairn ') commands of README and docs/kubernetes.yaml are ones that cairn takes"
