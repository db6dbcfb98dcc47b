#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# time limit: 240 s
#
# The bundle for a machine with a GPU, unpacked in an empty folder and run in an empty environment: it needs nothing
# of this build, and each step works on the emulated driver. A step that fails, hangs or is skipped is said to.
. "$(dirname "$0")/lib.sh"
archive=$BUILD/gpu-bundle.tar.gz
[ -e "$archive" ] || skip "no $archive: make gpu-bundle builds it"

bytes=$(stat -c %s "$archive")
[ "$bytes" -le $((60 << 20)) ] || die "the bundle has $bytes bytes, 60 MiB are allowed"
mkdir "$work/empty" "$work/nvidia" "$work/nvidia/cuda" "$work/home"
tar -C "$work/empty" -xzf "$archive"
bundle=$work/empty/cairn-gpu

# A C library as old as that of Ubuntu 22.04, and nothing else of a system.
elves=0
for file in "$bundle"/{bin,steps,steps/kernels,lib,lib/cairn}/*; do
        [ -f "$file" ] && [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
        elves=$((elves + 1))
        needed=$(LC_ALL=C objdump -p "$file" | awk '$1 == "NEEDED" { print $2 }' |
                grep -Ev '^(lib(c|m|dl|rt|pthread)\.so\.[0-9]+|ld-linux-x86-64\.so\.2|libgcc_s\.so\.1|libstdc\+\+\.so\.6|libcmocka\.so\.0)$' || true)
        [ -z "$needed" ] || die "${file#"$bundle/"} needs $needed"
        newest=$(objdump -T "$file" | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2n | tail -n 1)
        [ -z "$newest" ] || [ "${newest#GLIBC_2.}" -le 35 ] || die "${file#"$bundle/"} needs $newest"
done
[ "$elves" -ge 12 ] || die "of the bundle's files only $elves were looked at"
ok "at most 60 MiB, and a C library is all that it needs"

# What stands for NVIDIA's lies where the build does not.
emulated=(CAIRN_SIM_ACCESSES=0)
give() { # variable, file
        [ -e "$2" ] || return 0
        cp "$2" "$work/nvidia/cuda/"
        emulated+=("$1=$work/nvidia/cuda/${2##*/}")
}
give CAIRN_LIBCUDA "$BUILD/tests/cuda/libcuda-emu.so"
give CAIRN_LIBCUBLAS "$BUILD/tests/cuda/libcublas-emu.so"
give CAIRN_LIBNCCL "$BUILD/tests/comm/libnccl-script.so"
give CAIRN_CUDA "$BUILD/tests/cuda/cairn-cuda-emu.so"
# One of the simulator's kernels; all of them are tests of their own.
if [ -e "$BUILD/tests/kernels/test_gpu_norm" ]; then
        mkdir "$work/nvidia/kernels"
        cp "$BUILD/tests/kernels/test_gpu_norm" "$work/nvidia/kernels/"
        emulated+=("CAIRN_GPU_KERNELS=$work/nvidia/kernels")
fi
# What a toolkit has in the path.
mkdir "$work/nvidia/bin"
cat >"$work/nvidia/bin/compute-sanitizer" <<'EOF'
#!/bin/bash
[ "${*:1:6}" = "--tool memcheck --leak-check no --error-exitcode 1" ] || exit 64
echo "looked at by a sanitizer"
exec "$7"
EOF
chmod +x "$work/nvidia/bin/compute-sanitizer"
bare() { # arguments of run
        (cd "$work/home" && timeout -k 5 200 env -i PATH=/usr/bin:/bin:"$work/nvidia/bin" CAIRN_E2E="$work" TMPDIR="$work" HOME="$work/home" \
                "${emulated[@]}" "$bundle/run" "$@" 2>&1)
}
said=$(bare --help) || die "--help ends with $?: $said"
for word in --out --limit --brief results.json 'exit status'; do
        holds -e "$word" <<<"$said" || die "--help does not tell of $word: $said"
done
holds '^#\|set -u' <<<"$said" && die "--help is not only text: $said"
[ -z "$(ls "$work/home")" ] || die "--help made something"
said=$(bare --brief --out "$work/results") || die "the steps fail on the emulated driver:"$'\n'"$said"
[ "$(tail -n 1 <<<"$said")" = "$(tail -n 1 "$work/results/results.txt")" ] || die "the table is not what was said"
[ "$(json complete <"$work/results/results.json")" = true ] || die "the JSON is not whole"
version=$("$cairn" --version) commit=$(<"$bundle/commit")
if [ -z "$(git rev-parse --show-prefix 2>&1)" ]; then
        [[ $commit =~ ^[0-9a-f]{40}( and changes)?$ ]] || die "the bundle names no commit: $commit"
fi
[ "$(json version <"$work/results/results.json")" = "${version#cairn }" ] || die "the JSON names another version"
[ "$(json commit <"$work/results/results.json")" = "${commit:-null}" ] || die "the JSON names another commit"
[ "$(json emulated <"$work/results/results.json")" = true ] &&
        grep -q "^Cairn ${version#cairn }, ${commit:+commit $commit, }on .*, emulated: " "$work/results/results.txt" ||
        die "the results do not say that the driver is an emulated one"
passed=$(json passed <"$work/results/results.json") skipped=$(json skipped <"$work/results/results.json")
[[ "$(tail -n 1 <<<"$said")" = "$passed passed, 0 failed, $skipped skipped" ]] || die "counts differ: $said"
result() { # step
        json 'steps.*.name&result&reason' <"$work/results/results.json" | sed -n "s/^$1 //p"
}
for step in driver contract push exporter train nccl memfd context snapshot; do
        [ "$(result $step)" = "pass " ] || die "$step: $(result $step)"$'\n'"$(cat "$work/results/$step.log")"
done
for step in kernels memcheck inflation; do # of parts that the build may lack
        case $(result $step) in
        "pass "*) ;;
        "skip not in this bundle"* | "skip no "*) ;;
        *) die "$step: $(result $step)"$'\n'"$(cat "$work/results/$step.log")" ;;
        esac
done
[ "$(result memcheck)" != "pass " ] || grep -q 'looked at by a sanitizer' "$work/results/memcheck.log" || die "memcheck without one"
json 'steps.0.figures.functions.value' <"$work/results/results.json" | holds -E '^[0-9]+$' || die "no figures"
[ -z "$(find "$work" -maxdepth 1 -name 'cairn-gpu-*')" ] || die "run left a folder"
ok "every step that this build has works on the emulated driver: $(tail -n 1 <<<"$said")"

# Planted: what fails, hangs and is skipped; a driver that is not there.
plant() { # step, script
        printf '#!/bin/bash\n%s\n' "$2" >"$bundle/steps/$1"
        chmod +x "$bundle/steps/$1"
}
plant driver 'echo "figure answer 42 GB/s"; echo "a \"quoted\" reason"; exit 1'
plant contract 'sleep 1000 & echo $! >"'"$work"'/child"; exec sleep 1001'
plant push 'echo "no such thing here"; exit 77'
status=0
said=$(bare --limit 18 --out "$work/planted" driver contract push memfd) || status=$?
[ "$status" -eq 1 ] || die "exit status $status of a failed step: $said"
grep -Eq '^driver +fail .*a "quoted" reason' <<<"$said" || die "a failure is not said: $said"
grep -Eq '^contract +fail .*no end within [0-9]+ s' <<<"$said" || die "a step that hangs is not said: $said"
wait_for 60 ended "$(<"$work/child")"
[ "$(json 'steps.0.reason' <"$work/planted/results.json")" = 'a "quoted" reason' ] || die "JSON of a reason"
[ "$(json 'steps.0.figures.answer.unit' <"$work/planted/results.json")" = GB/s ] || die "JSON of a figure"
[ "$(tail -n 1 <<<"$said")" = "0 passed, 2 failed, 2 skipped" ] || die "$(tail -n 1 <<<"$said")"
# A library is taken from a folder that is named, whatever the system has.
mkdir "$work/nvidia/python"
cp "$BUILD/tests/comm/libnccl-script.so" "$work/nvidia/python/libnccl.so.2"
kept=("${emulated[@]}")
emulated=("CAIRN_LIBCUDA=$work/nvidia/cuda/libcuda-emu.so" "CAIRN_GPU_LIBS=/nowhere:$work/nvidia/python")
said=$(bare --brief --out "$work/planted" nccl) || die "libnccl.so.2 of a named folder is not found: $said"
emulated=("${kept[@]}")
rm "$bundle/steps/push"
status=0
said=$(bare --out "$work/planted" push) || status=$?
[ "$status" -eq 1 ] && grep -q 'not in this bundle' <<<"$said" || die "nothing passed, and exit status $status: $said"
emulated=(CAIRN_LIBCUDA=/nowhere/libcuda.so.1)
rm "$bundle/commit" # of a build that knew none
status=0
said=$(bare --out "$work/planted" memfd context) || status=$?
[ "$status" -eq 1 ] && [ "$(tail -n 1 <<<"$said")" = "0 passed, 2 failed, 0 skipped" ] || die "without a driver: $said"
[ "$(json commit <"$work/planted/results.json")" = null ] && holds "^Cairn ${version#cairn }, on " <<<"$said" ||
        die "a commit is named that nobody knows: $said"
ok "failures, hangs, skips, libraries and a missing driver are what they are"
