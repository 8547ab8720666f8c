#!/usr/bin/env bash
# Shows that FP8 training follows BF16: installs what is missing, builds, makes a corpus of a made-up language, trains
# about a million parameters on it twice, in BF16 and in FP8, from the same weights on the same batches, and compares
# the two runs in a table and a picture. Everything lands in out/demo/.
#
#   ./scripts/demo.sh                    under four minutes on two CPU cores
#   ./scripts/demo.sh --max-steps 50     flags of train_gpt are passed on and override the demo's
#   ./scripts/demo.sh --precision bf16   one run alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TRAIN_TOKENS=1000000
VAL_TOKENS=50000
MODEL=(--layers 4 --channels 128 --heads 4 --context 128 --seq 128)
REPORTS=(--val-every 110 --val-batches 20 --sample-every 220 --sample-tokens 100)

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
out=$(flag_value --out -o "$@")
out=${out:-out/demo}
precisions=$(flag_value --precision --precision "$@")
precisions=${precisions:-bf16 fp8}
steps=$(flag_value --max-steps -x "$@")
if ! [[ $steps =~ ^[1-9][0-9]*$ ]]; then steps=440; fi
# A long warm-up: without it the loss leaps for a step when the model has just learned how frequent each byte is.
TRAINING=(--batch 4 --max-steps "$steps" --lr 4e-3 --beta2 0.98 --warmup $((steps / 8)) --weight-decay 0.1)

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

stopped=75 # a signal or a limit ended a run early, and properly
code=0
interrupted=
trap 'interrupted=yes' INT TERM
runs=()
for precision in $precisions; do
    if [[ -n $interrupted ]]; then break; fi
    say "Training in ${precision^^}"
    run=$out/$precision
    place=(--out "$run")
    if [[ $out == out/demo ]]; then place+=(--overwrite); fi
    command=("./$program" --train out/demo/data/demo_train.bin --val out/demo/data/demo_val.bin
        "${MODEL[@]}" "${TRAINING[@]}" "${REPORTS[@]}" "$@" --precision "$precision" "${place[@]}")
    echo "${command[*]}"
    run_code=0
    "${command[@]}" || run_code=$?
    if ((run_code != 0 && run_code != stopped)); then exit "$run_code"; fi
    if ((run_code != 0)); then code=$run_code; fi
    if [[ -s $run/metrics.jsonl ]]; then runs+=("$run"); fi
done

case ${#runs[@]} in
    0) ;;
    1)
        say "Drawing the loss curve"
        .venv/bin/python scripts/plot_run.py "${runs[0]}" --out "$out/loss.png"
        ;;
    *)
        say "Comparing the runs"
        .venv/bin/python scripts/compare_runs.py "${runs[@]}" --out "$out/compare.png"
        cat <<END

== What to look at
In the table, under "gap, last validation": how far the FP8 run's loss is from BF16's at the end. A percent or so, in
either direction, is chance in so short a run. "products a micro-step" shows that the linear layers of the blocks ran in
FP8, and "weights at the start" and "batches" that nothing but the precision differs. Earlier gaps are larger: the loss
falls steeply there, and the runs take its steps at slightly different times.
In the picture, $out/compare.png: the two loss curves lie on each other and come down
towards the dotted line, below which no model can get; the lower panels show what the casts to FP8 lost.
The samples above are sentences of the made-up language: compare the first ones with the last.
On a CPU FP8 is emulated, and slower than BF16; its speed is for a GPU to show.
END
        ;;
esac
exit "$code"
