#!/usr/bin/env bash
# The whole way from text to an evaluated model: a tokenizer of its own, shards, training with checkpoints, evaluation,
# samples, an export, and a report of the run. It shows the tools and does not make a good model: the default text is
# this machine's documentation. All output goes to out/tour/.
#
#   ./scripts/tour.sh                                  a few minutes on two CPU cores
#   ./scripts/tour.sh --text 'books/*.txt' --steps 2000 --vocab 4096 --out out/books
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=out/tour steps=300 vocab=1024 text=
while (($# > 0)); do
    case "$1" in
        --out) out=$2 && shift 2 ;;
        --steps) steps=$2 && shift 2 ;;
        --vocab) vocab=$2 && shift 2 ;;
        --text) text=$2 && shift 2 ;;
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        *) echo "tour.sh: unknown argument '$1' (--help)" >&2 && exit 2 ;;
    esac
done

say() { printf '\n== %s\n' "$*"; }
run() {
    printf '  '
    printf ' %q' "$@"  # quoted, so that the line can be pasted
    printf '\n'
    "$@"
}

say "Installing and building what is missing"
./scripts/setup.sh
program=./train_gpt
if ! nvidia-smi >/dev/null 2>&1 || ! make -s train_gpt; then
    program=./train_gpt_cpu
    make -s train_gpt_cpu
fi
prepare=(.venv/bin/python -m data.prepare)
mkdir -p "$out"

say "Text to shards"
if [[ -z $text ]]; then
    mkdir -p "$out/text"
    # Licences that many packages share appear once. sed, unlike head, reads to the end: with pipefail, a closed pipe
    # would end the script on machines with many packages.
    find /usr/share/doc -name copyright -type f -size +2k 2>/dev/null | sort | sed -n 1,400p | xargs -r cat >"$out/text/documentation.txt"
    cat README.md dev/*/*.md llmc/*/README.md >>"$out/text/documentation.txt"
    text=$out/text
fi
run "${prepare[@]}" train-tokenizer "$text" --vocab "$vocab" --out "$out/tokenizer.json"
run "${prepare[@]}" text "$text" --separator '\n\n' --tokenizer "$out/tokenizer.json" --dedup exact --overwrite --out "$out/data"
run "${prepare[@]}" validate "$out/data"/{train,val}_*.bin

say "Training, with a checkpoint on the way"
run $program --train "$out/data/train_*.bin" --val "$out/data/val_*.bin" --out "$out/run" --overwrite \
    --layers 4 --channels 128 --heads 4 --seq 64 --batch 8 --precision fp8 --max-steps "$steps" --lr 1e-3 \
    --warmup $((steps / 10 + 1)) --val-every $((steps / 3 + 1)) --val-batches 20 --checkpoint-every $((steps / 2 + 1)) \
    --sample-every "$steps" --sample-tokens 40

say "What it has become"
run $program eval --from "$out/run" --val "$out/data/val_*.bin" --seq 64 --batch 8
run $program sample --from "$out/run" --prompt "The " --tokens 60 --temperature 0.8
run $program export --from "$out/run" --to "$out/model" --overwrite
run .venv/bin/python scripts/report.py "$out/run" -o "$out/report.html"

say "Done: $out/model for transformers, $out/report.html for a browser, $out/data/report.txt of the text"
