#!/usr/bin/env bash
# Trains a small GPT from nothing: installs what is missing, builds, makes a corpus of a made-up language, trains about
# a million parameters on it, prints samples and draws the loss curve into out/demo/.
#
#   ./scripts/demo.sh                  a few minutes on two CPU cores
#   ./scripts/demo.sh --max-steps 50   flags of train_gpt are passed on and override the demo's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TRAIN_TOKENS=1000000
VAL_TOKENS=50000
MODEL=(--layers 4 --channels 128 --heads 4 --context 128 --seq 128)
REPORTS=(--val-every 100 --val-batches 20 --sample-every 250 --sample-tokens 100)

say() { printf '\n== %s\n' "$*"; }

# The value that the script's arguments give to a flag, or nothing: flag_value --out -o "$@"
flag_value() {
    local long=$1 short=$2 value= previous= argument
    shift 2
    for argument in "$@"; do
        case "$argument" in "$long="* | "$short="*) value=${argument#*=} ;; esac
        case "$previous" in "$long" | "$short") value=$argument ;; esac
        previous=$argument
    done
    echo "$value"
}

for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
        printf '\nAll flags: ./train_gpt_cpu --help, once it is built.\n'
        exit 0
    fi
done
run=$(flag_value --out -o "$@")
steps=$(flag_value --max-steps -x "$@")
if ! [[ $steps =~ ^[1-9][0-9]*$ ]]; then steps=600; fi
# A long warm-up: without it the loss leaps for a step when the model has just learned how frequent each byte is.
TRAINING=(--batch 8 --max-steps "$steps" --lr 3e-3 --warmup $((steps / 8)) --weight-decay 0.1)

say "Installing what is missing"
./scripts/setup.sh

say "Building"
program=train_gpt_cpu
if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    echo "no nvcc (PATH, CUDA_HOME, /usr/local/cuda): the CUDA build is skipped"
elif ! nvidia-smi -L >/dev/null 2>&1; then
    echo "no GPU: the CUDA build is skipped (make train_gpt builds it)"
else
    program=train_gpt
fi
mkdir -p out/demo
if ! make -j"$(nproc)" "$program" >out/demo/build.log 2>&1; then
    tail -n 30 out/demo/build.log
    echo "the build failed; its whole log is in out/demo/build.log"
    exit 1
fi
echo "$program is built"

say "Making the corpus"
python3 data/demo_corpus.py --out out/demo/data --train-tokens "$TRAIN_TOKENS" --val-tokens "$VAL_TOKENS" --seed 1

say "Training"
place=()
if [[ -z $run ]]; then
    run=out/demo
    place=(--out "$run" --overwrite)
fi
command=("./$program" --train out/demo/data/demo_train.bin --val out/demo/data/demo_val.bin
    "${place[@]}" "${MODEL[@]}" "${TRAINING[@]}" "${REPORTS[@]}" "$@")
echo "${command[*]}"
stopped=75 # a signal or a limit ended the run early, and properly
code=0
"${command[@]}" || code=$?
if ((code != 0 && code != stopped)); then exit "$code"; fi

if [[ -s $run/metrics.jsonl ]]; then
    say "Drawing the loss curve"
    .venv/bin/python scripts/plot_run.py "$run" --out "$run/loss.png"
fi
exit "$code"
