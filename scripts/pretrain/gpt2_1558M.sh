#!/usr/bin/env bash
# GPT-2 1558M on 34 billion tokens of FineWeb-Edu, with the settings of llm.c's scripts/run_gpt2_1558M.sh. README.md
# says what to expect.
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
data=fineweb-edu100B batch=16 seq=1024 total_batch=1048576
flags=(-e d48 -x 32000 -l 6e-4 -u 700 -q 0.1 -c 0.1 -v 250 -n 2000 -s 10000)
launch "$@"
