#!/usr/bin/env python3
"""Makes the host device's side of part 3, on the machine that packs the programs: a small corpus, a run in every
precision, and its gradients.

    dev/gpu/make_references.py --build build/cpu-native --out out/gpu_pack/references
"""

import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from host_and_gpu import make_references
from tools import ROOT


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", required=True, metavar="DIR", help="with train_gpt_cpu")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--dry", action="store_true", help="the sizes of session.py --dry")
    args = parser.parse_args()
    out = os.path.abspath(args.out)
    subprocess.run([sys.executable, os.path.join(ROOT, "data", "demo_corpus.py"), "--out", out, "--train-tokens",
                    "200000", "--val-tokens", "20000", "--seed", "1"], check=True, stdout=subprocess.DEVNULL)
    program = os.path.abspath(os.path.join(args.build, "train_gpt_cpu"))
    make_references(program, os.path.join(out, "demo_train.bin"), out, args.dry)


if __name__ == "__main__":
    main()
