# The common part of the pretraining scripts in this folder, which source it. A script sets `data` (a folder under
# data/), `flags` (its run's flags), `seq` and `total_batch` (tokens per step), and `batch` (the most sequences that a
# rank processes at once).
#
#   GPUS=8           ranks on this machine (default: all that nvidia-smi lists, or 1)
#   HOSTS=a:8,b:8    several machines, with mpirun (multi_node/run_mpirun.sh)
#   NODES=4          this many nodes of 8 GPUs, with Slurm (multi_node/train.sbatch; sbatch reads SBATCH_*)
#   PRECISION=bf16   the run to compare with (default: fp8)
#   DATA=DIR         another place of the shards: *train_*.bin and *val_*.bin
#   OUT=DIR          default runs/NAME-PRECISION
#   SUPERVISE=...    options of scripts/supervise.py, which restarts after failures: SUPERVISE="--follow tensorboard"
#
# Flags on the command line come after the script's own and so override them. With --dry-run, --estimate-scaling or
# --print-config nothing is trained, and neither data nor a GPU is needed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

absolute() { [[ $1 == /* ]] && echo "$1" || echo "$PWD/$1"; }

launch() {
    if [[ ${1:-} == -h || ${1:-} == --help ]]; then
        sed -n '2,/^$/{/^#/s/^# \{0,1\}//p}' "$0"
        sed -n '5,14s/^# \{0,1\}//p' "$root/scripts/pretrain/launch.sh"
        return
    fi
    local planning= precision_flag= argument OUT=${OUT:-}
    for argument in "$@"; do
        case "$argument" in
            --dry-run | --estimate-scaling | --print-config) planning=1 ;;
            --precision | --precision=*) precision_flag=1 ;;
        esac
    done
    if [[ -n $precision_flag && -z $planning$OUT ]]; then
        echo "$0: give PRECISION=bf16 instead of --precision bf16: it also names the run's directory" >&2 && exit 2
    fi
    if [[ ${NODES:+x}${HOSTS:+x}${GPUS:+x} == xx* ]]; then
        echo "$0: NODES, HOSTS and GPUS all say where the ranks run; set one of them" >&2 && exit 2
    fi

    local ranks
    if [[ -n ${NODES:-} ]]; then
        ranks=$((8 * NODES))
    elif [[ -n ${HOSTS:-} ]]; then
        ranks=$(tr ',' '\n' <<<"$HOSTS" | awk -F: '{sum += $2 ? $2 : 1} END {print sum}')
    else
        ranks=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)}
        ((ranks > 0)) || ranks=1
    fi
    # On any number of ranks, a step uses the same sequences and a validation the same 10,485,760 tokens.
    local sequences=$((total_batch / seq / ranks))
    ((sequences > 0)) || { echo "$0: a step has $((total_batch / seq)) sequences, too few for $ranks ranks" >&2 && exit 2; }
    while ((batch > sequences || sequences % batch)); do batch=$((batch - 1)); done
    flags+=(-t "$seq" -d "$total_batch" -b "$batch" -m $((10485760 / (batch * seq * ranks))))

    local name precision=${PRECISION:-fp8}
    name=$(basename "$0" .sh)
    flags+=(--precision "$precision" -o "$(absolute "${OUT:-runs/$name-$precision}")")
    local program
    program=$(absolute "${PROGRAM:-$root/train_gpt}")
    [[ -x $program || -z $planning ]] || program=$root/train_gpt_cpu
    if [[ -n $planning ]]; then
        exec "$program" --vocab 50257 "${flags[@]}" --world "$ranks" "$@"
    fi
    local directory
    directory=$(absolute "${DATA:-data/$data}")
    if ! compgen -G "$directory/*train_*.bin" >/dev/null || ! compgen -G "$directory/*val_*.bin" >/dev/null; then
        echo "$0: $directory has no shards. scripts/pretrain/README.md says how they are made; DATA=DIR names another place" >&2
        exit 3
    fi
    flags+=(-i "$directory/*train_*.bin" -j "$directory/*val_*.bin" --resume auto "$@")
    export SUPERVISOR=$root/scripts/supervise.py
    if [[ -n ${NODES:-} ]]; then
        PROGRAM=$program exec sbatch --nodes="$NODES" "$root/scripts/multi_node/train.sbatch" "${flags[@]}"
    fi
    local command=("$program")
    if [[ -n ${HOSTS:-} ]]; then
        command=("$root/scripts/multi_node/run_mpirun.sh" --program "$program" --hosts "$HOSTS" --)
    elif ((ranks > 1)); then
        command=("$root/scripts/multi_node/run_mpirun.sh" --program "$program" --ranks "$ranks" --)
    fi
    eval "local options=(${SUPERVISE:-})" # words as in a command line, so that quotes work
    exec python3 "$SUPERVISOR" "${options[@]}" -- "${command[@]}" "${flags[@]}"
}
