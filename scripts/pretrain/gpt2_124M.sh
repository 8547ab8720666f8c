#!/usr/bin/env bash
# GPT-2 124M on 10 billion tokens of FineWeb, with the settings of llm.c's scripts/run_gpt2_124M.sh. README.md says what
# to expect.
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
data=fineweb10B batch=64 seq=1024 total_batch=524288
flags=(-e d12 -x 19560 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -n 5000 -s 5000)
launch "$@"
