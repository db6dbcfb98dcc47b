# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Completion of cairn(1) for bash. Runs come from the store that the command would use.

# The options of each command; one that ends in = takes a value. tests/e2e/systemd.sh compares them
# with `cairn COMMAND --help`.
declare -gA _cairn_options=(
        [bench]='--dir= --bytes= --keep= --json'
        [demo]='--data= --steps= --ranks= --keep'
        [diff]='--tensors --store= --json'
        [doctor]='--json'
        [drain]='--deadline='
        [init]='--kind='
        [inspect]='--tensors --store= --json'
        [list]='--store= --json'
        [notify]='--kind= --in= --id= --json'
        [pin]='--store='
        [prune]='--keep-last= --keep-every= --dry-run --store='
        [run]='--run= --store= --mode= --from= --init-from= --every= --on-notice= --keep-last= --max-restarts= --nproc-per-node= --nnodes= --rdzv= --node= --address= --override= --convert='
        [snapshot]='--wait --timeout= --tag= --json'
        [status]='--watch --json'
        [stop]='--deadline='
        [unpin]='--store='
        [verify]='--store= --json'
)

_cairn_runs() {
        cairn list ${1:+--store "$1"} 2>/dev/null | awk 'NR > 1 { print $1 }'
}

_cairn() {
        local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]-}
        local store='' i
        COMPREPLY=()
        if [ "$COMP_CWORD" -eq 1 ]; then
                mapfile -t COMPREPLY < <(compgen -W "${!_cairn_options[*]} --help --version" -- "$word")
                return
        fi
        for ((i = 2; i < COMP_CWORD; i++)); do
                case ${COMP_WORDS[i]} in
                --) # what follows is the training command
                        mapfile -t COMPREPLY < <(compgen -c -- "$word"; compgen -f -- "$word")
                        return
                        ;;
                --store) store=${COMP_WORDS[i + 1]-} ;;
                esac
        done
        case $previous in
        --mode) mapfile -t COMPREPLY < <(compgen -W 'fresh resume auto' -- "$word") ;;
        --kind)
                if [ "$command" = notify ]; then
                        mapfile -t COMPREPLY < <(compgen -W 'preempt rebalance' -- "$word")
                else
                        mapfile -t COMPREPLY < <(compgen -W 'shared node-local' -- "$word")
                fi
                ;;
        --on-notice) mapfile -t COMPREPLY < <(compgen -W 'exit hold' -- "$word") ;;
        --store | --dir) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
        --data) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
        --run | --init-from) mapfile -t COMPREPLY < <(compgen -W "$(_cairn_runs "$store")" -- "$word") ;;
        --*)
                [[ " ${_cairn_options[$command]-} " == *" $previous= "* ]] && return
                ;;&
        *)
                if [[ $word == -* ]]; then
                        mapfile -t COMPREPLY < <(compgen -W "${_cairn_options[$command]//=/} --help" -- "$word")
                        return
                fi
                case $command in
                bench) mapfile -t COMPREPLY < <(compgen -W 'write read snapshot' -- "$word") ;;
                doctor | init) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
                diff | inspect | list | notify | pin | prune | snapshot | status | stop | unpin | verify)
                        mapfile -t COMPREPLY < <(compgen -W "$(_cairn_runs "$store")" -- "$word")
                        ;;
                esac
                ;;
        esac
}
complete -F _cairn cairn
