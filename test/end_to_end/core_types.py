"""The core types that OpenBLAS can play on this CPU: each has products of its own, which sum in an order of their own, so one
machine shows what others would compute.

    python3 test/end_to_end/core_types.py             # one a line, this machine's own first
    python3 test/end_to_end/core_types.py --fastest   # the one to test with
"""

import functools
import re
import sys

from trainer import run, tiny_flags

# Of x86-64, from the oldest on. Some CPUs cannot play some: they lack the instructions.
CANDIDATES = ("Prescott", "Core2", "Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids")


def core_of(name):
    """The core type that a run has with OPENBLAS_CORETYPE=name, where it is not None; None: the run failed."""
    environment = {"OPENBLAS_CORETYPE": name} if name else {}
    done = run(*tiny_flags("--max-steps", "1", "--precision", "fp32"), env={"OPENBLAS_VERBOSE": "2", **environment})
    found = re.findall(r"^Core: (\w+)$", done.out + done.err, re.MULTILINE)
    return found[-1] if done.code == 0 and found else None


@functools.cache
def core_types():
    """[name]: this machine's own, unless OPENBLAS_CORETYPE says otherwise, and those it can play."""
    own = core_of(None)
    played = [name for name in CANDIDATES if name != own and core_of(name) == name]
    return [own, *played] if own else played


def fastest():
    """This machine's own; the newest where OpenBLAS is older than the CPU, which it then takes for one without AVX."""
    own, *played = core_types() or [""]
    with_avx = [name for name in played if name in CANDIDATES[3:]]
    return own if own not in CANDIDATES[:3] or not with_avx else with_avx[-1]


if __name__ == "__main__":
    print(fastest() if sys.argv[1:] == ["--fastest"] else "\n".join(core_types()))
