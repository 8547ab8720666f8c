#!/usr/bin/env bash
# Trains on several machines with mpirun, one rank per GPU. Everything after -- goes to train_gpt.
#
#   scripts/multi_node/run_mpirun.sh --hosts node1:8,node2:8 -- -i 'data/fineweb10B/*train_*.bin' -o runs/d12 -e d12
#   scripts/multi_node/run_mpirun.sh --ranks 4 --program ./train_gpt_cpu -- ...     four ranks on this machine
#
#   --hosts LIST        machines and their GPUs, in the format of mpirun's --host; or --hostfile FILE
#   --ranks N           total number of ranks (default: the sum over --hosts)
#   --program FILE      default: train_gpt of this repository; must have the same path on every machine
#   --interface NAME    network interface for MPI and for NCCL's bootstrap, for example eth0
#   --print             shows the command without running it
#
# Works with Open MPI 4 and 5. SIGUSR1 to mpirun requests a checkpoint and a clean end (exit code 75). On SIGTERM mpirun
# kills the ranks shortly after notifying them; this script gives them a minute to save.
set -euo pipefail

# The ranks run in the caller's directory, so that relative paths mean the same files as without this script.
program=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/train_gpt
hosts='' hostfile='' ranks='' interface='' print=0

usage_error() {
    echo "run_mpirun.sh: $1 (--help)" >&2
    exit 2
}

while (($# > 0)); do
    case "$1" in
        --hosts | --hostfile | --ranks | --program | --interface)
            (($# > 1)) || usage_error "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        --print) print=1 && shift ;;
        --) shift && break ;;
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        *) usage_error "unknown argument '$1'; train_gpt's own flags come after --" ;;
    esac
done

command -v mpirun >/dev/null || usage_error "mpirun is not in PATH: install Open MPI (scripts/setup.sh does)"
[[ -x $program ]] || usage_error "$program is not there: make train_gpt"
[[ -n $hosts || -n $hostfile || -n $ranks ]] || usage_error "--hosts, --hostfile or --ranks is needed"
[[ -z $ranks || $ranks =~ ^[1-9][0-9]*$ ]] || usage_error "--ranks $ranks: expected a number from 1 on"

# Ranks are not bound to cores: train_gpt has several threads, and mpirun would put them all on one core.
command=(mpirun --bind-to none --map-by slot --mca odls_base_sigkill_timeout 60)
if [[ -n $hosts ]]; then
    command+=(--host "$hosts")
    if [[ -z $ranks ]]; then
        ranks=0
        IFS=, read -ra list <<<"$hosts"
        for entry in "${list[@]}"; do
            slots=1
            [[ $entry != *:* ]] || slots=${entry##*:}
            ranks=$((ranks + slots))
        done
    fi
fi
[[ -z $hostfile ]] || command+=(--hostfile "$hostfile")
[[ -z $ranks ]] || command+=(-np "$ranks")
# One machine without a list of hosts may run more ranks than it has cores.
[[ -n $hosts || -n $hostfile ]] || command+=(--oversubscribe)
((EUID != 0)) || command+=(--allow-run-as-root)
if [[ -n $interface ]]; then
    command+=(--mca btl_tcp_if_include "$interface" --mca oob_tcp_if_include "$interface")
    export NCCL_SOCKET_IFNAME=$interface
fi
# Passes variables that are set here to the other machines.
while IFS='=' read -r name _; do
    case "$name" in NCCL_* | OMP_* | CUDA_* | LD_LIBRARY_PATH) command+=(-x "$name") ;; esac
done < <(env)
command+=("$program" "$@")

if ((print)); then
    printf '%q ' "${command[@]}"
    echo
else
    exec "${command[@]}"
fi
