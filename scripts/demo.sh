#!/usr/bin/env bash
# Shows that FP8 training follows BF16. Installs what is missing, builds, generates a corpus of a made-up language,
# trains a small GPT on it in BF16 and in FP8 (same initial weights, same batches), and compares the runs in a table and
# a picture. A third run, the control, is BF16 again with different rounding. All output goes to out/demo/.
#
# With --modern it compares an older and a newer recipe instead: GPT-2 with AdamW, and a nanochat-like model with Muon.
# Both train in FP8 on the same batches and have about the same number of parameters. Output goes to out/demo/modern/.
#
#   ./scripts/demo.sh                    a few minutes on two CPU cores, most of them for the build
#   ./scripts/demo.sh --modern           less
#   ./scripts/demo.sh --max-steps 50     passes flags on to train_gpt; they override the demo's
#   ./scripts/demo.sh --precision bf16   only one run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TRAIN_TOKENS=1000000
VAL_TOKENS=50000
MODEL=(--layers 2 --channels 64 --heads 2 --context 32 --seq 32)
REPORTS=(--val-every 120 --val-batches -1 --sample-every 300 --sample-tokens 100)

say() { printf '\n== %s\n' "$*"; }

# Prints the value of a flag among the script's arguments, or nothing: flag_value --out -o "$@"
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

modern=
passed_on=()
for argument in "$@"; do
    if [[ $argument == --modern ]]; then modern=yes; else passed_on+=("$argument"); fi
    if [[ $argument == -h || $argument == --help ]]; then
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
        printf '\nAll flags: ./train_gpt_cpu --help, once it is built.\n'
        exit 0
    fi
done
set -- "${passed_on[@]}"
out=$(flag_value --out -o "$@")
out=${out:-out/demo${modern:+/modern}}
kinds=$(flag_value --precision --precision "$@")
kinds=${kinds:-bf16 fp8}
if [[ -n $modern ]]; then kinds="gpt2 nano"; fi
steps=$(flag_value --max-steps -x "$@")
if ! [[ $steps =~ ^[1-9][0-9]*$ ]]; then steps=$([[ -n $modern ]] && echo 300 || echo 600); fi
# A long warm-up: without it, the loss jumps for a step when the model has just learned the frequencies of bytes. At
# higher rates even runs that differ only in rounding diverge from each other.
TRAINING=(--batch 16 --max-steps "$steps" --lr 2e-3 --warmup $((steps / 8)) --weight-decay 0.1)
# The same samples per step in two halves, whose gradients are rounded to BF16 stochastically: halves alone need not
# change a bit. Not used if flags choose the batch, or how gradients are clipped, which BF16 gradients allow in one way.
CONTROL=(--precision bf16 --gradients bf16 --batch 8 --total-batch 512 --sample-every 0)
chosen=$(flag_value --batch -b "$@")$(flag_value --seq -t "$@")$(flag_value --total-batch -d "$@")
chosen+=$(flag_value --clip-kind --clip-kind "$@")
control=
if [[ $kinds == "bf16 fp8" && -z $chosen ]]; then control=yes; fi

say "Installing what is missing"
./scripts/setup.sh

say "Building"
program=train_gpt_cpu
if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    echo "no nvcc (PATH, CUDA_HOME, /usr/local/cuda): the CUDA build is skipped"
elif [[ -z $(make -s gpu-build) ]]; then
    echo "no GPU that train_gpt runs on: the CUDA build is skipped (make train_gpt builds it)"
else
    program=train_gpt
fi
mkdir -p out/demo
if ! make -j"$(OMP_NUM_THREADS= nproc)" "$program" >out/demo/build.log 2>&1; then
    tail -n 30 out/demo/build.log
    echo "the build failed; its whole log is in out/demo/build.log"
    exit 1
fi
echo "$program is built"

say "Making the corpus"
python3 data/demo_corpus.py --out out/demo/data --train-tokens "$TRAIN_TOKENS" --val-tokens "$VAL_TOKENS" --seed 1

# Such a small model gains nothing from more; nproc, above, would follow it.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
stopped=75  # exit code of a run that a signal or a limit ended early, after saving
code=0
interrupted=
control_process=
trap 'interrupted=yes; [[ -z $control_process ]] || kill -TERM $control_process 2>/dev/null' INT TERM
runs=()

# The two recipes of --modern, each with the best of the learning rates tried (dev/notes/measured_cpu.md, "Muon and
# AdamW"), and with the same schedule. The MLP of the second is narrower than usual to make up for its untied head: the
# models have 118,592 and 114,816 parameters.
MODERN=(--precision fp8 --batch 16 --seq 32 --max-steps "$steps" --warmup $((steps / 15)) --weight-decay 0.1)
modern_gpt2() {
    TRAINING=("${MODERN[@]}" --optimizer adamw --lr 8e-3)
}
modern_nano() {
    echo '{"architecture": "nano", "layers": 2, "heads": 2, "channels": 64, "hidden": 192, "context": 32}' >out/demo/nano.json
    MODEL=(--model out/demo/nano.json)
    TRAINING=("${MODERN[@]}" --optimizer muon --lr 1.6e-2 --adamw-lr 8e-3,embedding=4e-2)
}
if [[ -n $modern ]]; then REPORTS=(--val-every 10 --val-batches 20 --sample-every "$steps" --sample-tokens 100); fi

# train NAME FLAG...: builds in `command` the command line of the run $out/NAME.
train() {
    local place=(--out "$out/$1")
    if [[ $out == out/demo || $out == out/demo/modern ]]; then place+=(--overwrite); fi
    command=("./$program" --train out/demo/data/demo_train.bin --val out/demo/data/demo_val.bin
        "${MODEL[@]}" "${TRAINING[@]}" "${REPORTS[@]}" "${passed_on[@]}" "${@:2}" "${place[@]}")
}

if [[ -n $control ]]; then
    say "Training a control in the background: BF16 rounded differently (out/demo/control.log)"
    train control "${CONTROL[@]}"
    "${command[@]}" >out/demo/control.log 2>&1 &
    control_process=$!
fi
for kind in $kinds; do
    if [[ -n $interrupted ]]; then break; fi
    case "$kind" in
        gpt2) say "Training a GPT-2 with AdamW" && modern_gpt2 && train gpt2 ;;
        nano) say "Training a nanochat-like model with Muon" && modern_nano && train nano ;;
        *) say "Training in ${kind^^}" && train "$kind" --precision "$kind" ;;
    esac
    echo "${command[*]}"
    run_code=0
    "${command[@]}" || run_code=$?
    if ((run_code != 0 && run_code != stopped)); then
        [[ -z $control_process ]] || kill "$control_process"
        exit "$run_code"
    fi
    if ((run_code != 0)); then code=$run_code; fi
    if [[ -s $out/$kind/metrics.jsonl ]]; then runs+=("$out/$kind"); fi
done
if [[ -n $control_process ]]; then
    run_code=0
    wait "$control_process" || run_code=$?
    if [[ -n $interrupted ]]; then wait "$control_process" || run_code=$?; fi  # the signal ended the first wait
    if ((run_code != 0 && run_code != stopped)); then
        tail -n 5 out/demo/control.log
        exit "$run_code"
    fi
    if ((${#runs[@]} == 2)); then runs=("${runs[0]}" "$out/control" "${runs[1]}"); fi
fi

case ${modern:+modern }${#runs[@]} in
    *0) ;;
    *1)
        say "Drawing the loss curve"
        .venv/bin/python scripts/plot_run.py "${runs[0]}" --out "$out/loss.png"
        ;;
    modern*)
        say "Comparing the runs"
        .venv/bin/python scripts/steps_to_loss.py "${runs[@]}" --out "$out/steps.png"
        cat <<END

== What to look at
In the lower table: after how many steps each model first reached the validation losses that GPT-2 had after an eighth, a
quarter, a half and all of its steps. $out/steps.png has the curves, with these steps next to them.
Blocks and optimizer are compared together: layer norms, learned positions, GELU and AdamW with RMS norms, rotary
positions, norms of queries and keys, squared ReLU, capped logits and Muon. Both have about as many parameters and
saw the same tokens, each at the best of the learning rates tried (dev/notes/measured_cpu.md, "Muon and AdamW"), with one
seed. So small a language is learned within a hundred steps, so this does not say how much a large model gains. The
milliseconds mean nothing for a GPU: a CPU emulates FP8.
END
        ;;
    *)
        say "Comparing the runs"
        .venv/bin/python scripts/compare_runs.py "${runs[@]}" --out "$out/compare.png"
        cat <<END

== What to look at
In the table, under "gap, last validation": how far a run's loss is from BF16's at the end. The control's gap is chance:
it is BF16 too, on the same samples, with different rounding. FP8's gap should be at most half a percent. "matmuls per
micro-step" counts them by type: the second block ran in FP8, and the head's gradients. "weights at the start" and
"batches" show that nothing but the precision differs.
In the picture, $out/compare.png: the loss curves lie on each other and fall towards the dotted line, which no
model can beat. The lower panels show what the casts to FP8 lost.
The samples above are sentences of the made-up language: compare the first ones with the last.
A CPU emulates FP8, so the times say nothing about a GPU. dev/guide/fp8_gaps.md compares larger models on real text.
END
        ;;
esac
exit "$code"
