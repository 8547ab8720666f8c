"""Part 6: the time of a training step on the GPU by family of kernels. It compares two runs of different lengths, whose
difference consists of identical steps: start, calibration and cuBLASLt's first plans cancel out.
"""

import csv
import io
import os
import re

from tools import Part, find_library, find_tool, library_directories, read_json
from training import PRECISIONS, SIZES

# A kernel belongs to the first pattern that its (mangled) name contains. Names with "gemm" and the like are cuBLASLt's.
FAMILIES = [
    ("matrix products", r"gemm|cutlass|nvjet|xmma|cublas|splitK|epilogue"),
    ("attention", r"attention_"),
    ("norms", r"layernorm"),
    ("GELU, SwiGLU, ReLU squared", r"gelu|swiglu|relu2"),
    ("positions", r"rope"),
    ("optimizer", r"adamw|update_kernel|muon_|copy_matrix|_squares|rates_kernel|global_norm|clip_|add_partials|loss_scale|prepare_step|spike"),
    ("communication", r"pieces|nccl"),
    ("verification", r"checksum"),
    ("records of FP8", r"moments_kernel|differences_kernel|cosines_kernel|alignment_kernel"),
    ("quantization", r"quantize|dequantize|product_factors|transpose_codes|smoothing|scale|amax|fp8"),
    ("biases and their gradients, column sums", r"bias|column"),
    ("loss", r"softmax_cross_entropy|sum_losses"),
    ("embedding", r"embedding"),
    ("copies and fills", r"^\[copy\]|^\[fill\]|cast_kernel|add_kernel|transpose"),
]


def family_of(name):
    for family, pattern in FAMILIES:
        if re.search(pattern, name):
            return family
    return "other"


def per_step(long_run, short_run, steps):
    """The kernels of one step, from two lists of {"name", "count", "ns"}."""
    before = {kernel["name"]: kernel for kernel in short_run}
    kernels = []
    for kernel in long_run:
        other = before.get(kernel["name"], {"count": 0, "ns": 0})
        count, ns = kernel["count"] - other["count"], kernel["ns"] - other["ns"]
        if count > 0:
            kernels.append({"name": kernel["name"], "launches": count / steps, "us": round(ns / steps / 1e3, 3),
                            "registers": kernel.get("registers")})
    return sorted(kernels, key=lambda kernel: -kernel["us"])


def by_family(kernels):
    """Returns {family: {"us", "launches", "share"}}, largest first."""
    families, total = {}, sum(kernel["us"] for kernel in kernels) or 1
    for kernel in kernels:
        row = families.setdefault(family_of(kernel["name"]), {"us": 0.0, "launches": 0.0})
        row["us"] += kernel["us"]
        row["launches"] += kernel["launches"]
    for row in families.values():
        row.update(us=round(row["us"], 1), share=round(row["us"] / total, 4))
    return dict(sorted(families.items(), key=lambda item: -item[1]["us"]))


def kernels_of_ncu(text):
    """The same list from the output of `ncu --csv`, with one time per launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    kernels = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not row.get("Metric Value", "").replace(",", "").replace(".", "").isdigit():
            continue
        value = float(row["Metric Value"].replace(",", ""))
        scale = {"u": 1e3, "m": 1e6}.get(row.get("Metric Unit", "")[:1], 1)  # nsecond, usecond, msecond
        kernel = kernels.setdefault(row["Kernel Name"], {"name": row["Kernel Name"], "count": 0, "ns": 0})
        kernel["count"] += 1
        kernel["ns"] += value * scale
    return list(kernels.values())


def command_of(session, model, batch, precision, steps):
    return [session.program("train_gpt"), "--train", session.shard("train"), "-e", model, "-b", batch, "-t", 1024, "-r",
            "none", *PRECISIONS[precision], "--max-steps", steps, "--val-every", 0]


def kernels_of_a_run(session, command, name):
    # Profiles one run.
    """By the library that CUDA loads into the program; by ncu where CUPTI cannot be had."""
    times = session.path("profile", name + ".json")
    os.makedirs(os.path.dirname(times), exist_ok=True)
    library = os.path.join(session.programs, "libkernel_times.so")
    cupti = find_library("libcupti.so.13", library_directories())
    if os.path.exists(times):
        os.remove(times)
    output = "no libcupti.so.13"
    if cupti and os.path.exists(library):
        # last, because the directory may contain another version of cuBLASLt
        path = os.pathsep.join([*filter(None, [session.env.get("LD_LIBRARY_PATH")]), os.path.dirname(cupti)])
        env = {"CUDA_INJECTION64_PATH": library, "KERNEL_TIMES": times, "LD_LIBRARY_PATH": path}
        done = session.run(command, 180, env, log="profile_" + name)
        output = done.tail()
        if os.path.exists(times):
            kernels = read_json(times)["kernels"]
            if kernels:
                return "cupti", kernels
    ncu = find_tool("ncu")
    if ncu:
        flags = ["--csv", "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
        done = session.run([ncu, *flags, *command], 240, log="ncu_" + name)
        return "ncu", kernels_of_ncu(done.output)
    return output, []


def profile_of(session, size, precision):
    model, batch = SIZES[size]
    runs = []
    for steps in (4, 10):
        how, kernels = kernels_of_a_run(session, command_of(session, model, batch, precision, steps),
                                        f"{size}_{precision}_{steps}")
        if not kernels:
            return {"done": False, "why": how}
        runs.append(kernels)
    kernels = per_step(runs[1], runs[0], 6)
    return {"how": how, "batch": batch, "ms_of_kernels": round(sum(k["us"] for k in kernels) / 1e3, 2),
            "launches": round(sum(k["launches"] for k in kernels)), "families": by_family(kernels),
            "kernels": kernels[:60]}


def part6(session):
    part = Part(session, 6, "profile")
    if session.dry:  # the host device has no kernels that CUPTI could see, so test only the arithmetic
        short = [{"name": "llmc::attention_forward_kernel", "count": 8, "ns": 8000}]
        longer = [{"name": "llmc::attention_forward_kernel", "count": 20, "ns": 20000},
                  {"name": "nvjet_sm90", "count": 12, "ns": 36000}]
        kernels = per_step(longer, short, 6)
        part.item("arithmetic", lambda: {"families": by_family(kernels), "kernels": kernels})
    else:
        for size, precision in (("124M", "bf16"), ("124M", "delayed"), ("1558M", "delayed"), ("1558M", "bf16")):
            part.item(f"{size} {precision}", lambda: profile_of(session, size, precision), 60)
    part.finish()
