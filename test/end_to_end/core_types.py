"""The core types that OpenBLAS can use on this CPU. Each has its own products, which sum in their own order, so one
machine shows the results of others.

    python3 test/end_to_end/core_types.py             # one per line, this machine's own first
    python3 test/end_to_end/core_types.py --fastest   # the one to test with
"""

import functools
import re
import sys

from trainer import run, tiny_flags

# For x86-64, oldest first. A CPU cannot use a type whose instructions it lacks.
WITHOUT_AVX = ("Prescott", "Core2", "Nehalem")
CANDIDATES = (*WITHOUT_AVX, "Sandybridge", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids")


def core_of(name):
    """The core type that a run uses with OPENBLAS_CORETYPE=name (if not None). None if the run failed."""
    environment = {"OPENBLAS_CORETYPE": name} if name else {}
    done = run(*tiny_flags("--max-steps", "1", "--precision", "fp32"), env={"OPENBLAS_VERBOSE": "2", **environment})
    found = re.findall(r"^Core: (\w+)$", done.out + done.err, re.MULTILINE)
    return found[-1] if done.code == 0 and found else None


@functools.cache
def core_types():
    """The names of this machine's own type, unless OPENBLAS_CORETYPE sets another, and of the other types that it can
    use.
    """
    own = core_of(None)
    played = [name for name in CANDIDATES if name != own and core_of(name) == name]
    return [own, *played] if own else played


def fastest():
    """This machine's own type. If OpenBLAS is older than the CPU and takes it for one without AVX: the newest type that
    works.
    """
    own = core_of(None)
    return core_types()[-1] if own in WITHOUT_AVX else own or ""


if __name__ == "__main__":
    print(fastest() if sys.argv[1:] == ["--fastest"] else "\n".join(core_types()))
