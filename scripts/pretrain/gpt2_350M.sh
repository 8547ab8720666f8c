#!/usr/bin/env bash
# GPT-2 350M on 31 billion tokens of FineWeb, with the settings of llm.c's scripts/run_gpt2_350M.sh. README.md says what
# to expect.
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
data=fineweb100B batch=64 seq=1024 total_batch=524288
flags=(-e d24 -x 60000 -l 3e-4 -u 700 -q 0 -c 0.1 -v 250 -n 2000 -s 10000)
launch "$@"
