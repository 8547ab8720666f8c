#!/usr/bin/env bash
# The whole way from a text to a model that writes like it: a tokenizer of its own, shards, training that stops and
# resumes, samples, an evaluation, a comparison of FP8 with BF16, an export, and a report. The text is Shakespeare's
# (1 MB, downloaded once) or your own. All output goes to out/tour/. dev/guide/tour.md shows what it prints. Another tour
# replaces what an earlier one has made; any other directory that --out names must be new or empty.
#
#   ./scripts/tour.sh                                  3 to 7 minutes on two CPU cores, and the build
#   ./scripts/tour.sh --text 'books/*.txt' --steps 4000 --vocab 1024 --out out/books
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=out/tour steps=1200 vocab=512 text=
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

made=$out/made_by_tour
if [[ $out != out/tour && ! -e $made && -n $(ls -A "$out" 2>/dev/null) ]]; then
    echo "tour.sh: $out has files that no tour made, and a tour would replace some; give another --out" >&2
    exit 2
fi
mkdir -p "$out"
touch "$made"

say "Installing and building what is missing"
./scripts/setup.sh
program=./train_gpt
if ! nvidia-smi >/dev/null 2>&1 || ! make -s train_gpt; then
    program=./train_gpt_cpu
    make -s train_gpt_cpu
fi

say "Text to shards"
if [[ -z $text ]]; then
    text=$out/tinyshakespeare.txt
    if ! run python3 -m data.prepare download tinyshakespeare --out "$out"; then
        echo "tour.sh: --text FILE takes a text of your own, best of 1 MB or more" >&2
        exit 1
    fi
fi
run python3 -m data.prepare train-tokenizer "$text" --vocab "$vocab" --out "$out/tokenizer.json"
run python3 -m data.prepare text "$text" --tokenizer "$out/tokenizer.json" --overwrite --out "$out/data"

say "Training that stops half-way, as Ctrl-C would stop it"
run $program --config scripts/configs/shakespeare_cpu.json -i "$out/data/train_*.bin" -j "$out/data/val_*.bin" -o "$out/run" \
    --overwrite -x "$steps" -u $((steps / 20)) -n $((steps / 4)) -v $((steps / 4)) --stop-after $((steps / 2))

say "Training that continues"
run $program -o "$out/run" --resume latest

say "What it has become"
run $program sample --from "$out/run" --prompt 'ROMEO:' --temperature 0.5
run $program eval --from "$out/run" --val "$out/data/val_*.bin"

say "Does FP8 follow BF16? From one checkpoint, next to a control"
run python3 scripts/drift.py "$out/run" --steps $((steps < 12 ? 1 : steps / 12))

say "A model for transformers, and a report"
run $program export --from "$out/run" --to "$out/model" --overwrite
run python3 scripts/report.py "$out/run" -o "$out/report.html"

say "Done: $out/model for transformers, $out/report.html for a browser, $out/data/report.txt about the text"
