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
WITHOUT_AVX = ("Prescott", "Core2", "Nehalem")
CANDIDATES = (*WITHOUT_AVX, "Sandybridge", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids")


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
    """This machine's own; the newest that it can play where OpenBLAS is older than the CPU and takes it for one without AVX."""
    own = core_of(None)
    return core_types()[-1] if own in WITHOUT_AVX else own or ""


if __name__ == "__main__":
    print(fastest() if sys.argv[1:] == ["--fastest"] else "\n".join(core_types()))
