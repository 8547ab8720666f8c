#!/usr/bin/env bash
# GPT-2 774M on 150 billion tokens of FineWeb, with the settings of llm.c's scripts/run_gpt2_774M.sh. README.md says
# what to expect.
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
data=fineweb100B batch=32 seq=1024 total_batch=524288
flags=(-e d36 -x 286102 -l 2.5e-4 -u 700 -q 0 -c 0.1 -v 250 -n 4000 -s 50000)
launch "$@"
