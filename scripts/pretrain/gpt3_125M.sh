#!/usr/bin/env bash
# GPT-3 125M on 300 billion tokens of FineWeb, with the settings of llm.c's scripts/run_gpt3_125M.sh. README.md says
# what to expect.
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"
data=fineweb100B batch=32 seq=2048 total_batch=524288
flags=(-e gpt3-125m -x 572204 -l 6e-4 -u 700 -q 0.1 -c 0.1 -v 250 -n 10000 -s 50000 --skip-spikes)
launch "$@"
