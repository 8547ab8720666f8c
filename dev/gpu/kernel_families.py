"""Part 6: the time of a training step on the GPU by family of kernels, compared with the time model, and attention's
TFLOP/s, compared with published ones. It takes two runs of different lengths, whose difference consists of identical
steps: start, calibration and cuBLASLt's first plans cancel out. And how much longer kernels take while 8, 16 or 24
multiprocessors are held, as by NCCL, compared with the factors that the time model has.
"""

import csv
import io
import json
import os
import re

from tools import Part, find_library, find_tool, library_directories, read_json
from training import PORTABLE, PRECISIONS, SIZES, kernel_flags

# A kernel belongs to the first pattern that its (mangled) name contains. Names with "gemm" and the like are cuBLASLt's.
FAMILIES = [
    ("matrix products", r"matmul_gelu|gemm|cutlass|nvjet|xmma|cublas|splitK|epilogue"),
    ("attention", r"attention_"),
    ("norms", r"layernorm"),
    ("GELU, SwiGLU, ReLU squared", r"gelu|swiglu|relu2"),
    ("positions", r"rope"),
    ("optimizer", r"adamw|update_kernel|add_gradients|muon_|average_kernel|copy_matrix|_squares|rates_kernel|global_norm|clip_|add_partials|loss_scale|prepare_step|spike"),
    ("communication", r"pieces|nccl"),
    ("verification", r"checksum"),
    ("quantization", r"quantize|dequantize|product_factors|transpose_codes|scale|amax|fp8"),
    ("biases and their gradients, column sums", r"bias|column"),
    ("loss", r"softmax_cross_entropy|sum_losses"),
    ("embedding", r"embedding"),
    ("copies and fills", r"^\[copy\]|^\[fill\]|initial_values|cast_kernel|add_kernel|subtract_kernel|transpose"),
]

# The part of the time model (--dry-run --json) that predicts a family; it has no parts for the families left out.
MODELLED = {
    "matrix products": "matmuls", "attention": "attention", "optimizer": "optimizer",
    **{family: "elementwise" for family in ("norms", "GELU, SwiGLU, ReLU squared", "positions", "quantization", "loss",
                                            "biases and their gradients, column sums", "embedding", "copies and fills")},
}

# GPT-2's layers and channels, for the products of attention.
SHAPES = {"124M": (12, 768), "355M": (24, 1024), "774M": (36, 1280), "1558M": (48, 1600)}
# TFLOP/s of causal BF16 attention on an H100 with head dimension 64 and 1024 tokens, counted as below. FlashAttention-3's
# figures are those of its paper (2407.08608); backward rates are derived from forward and backward together.
PUBLISHED_ATTENTION = {"FlashAttention-2": {"forward": 229, "backward": 180},
                       "FlashAttention-3": {"forward": 265, "backward": 215}, "cuDNN": {"forward": 288}}


SEQ = 1024
HELD = (0, 8, 16, 24)  # multiprocessors
HOLD = "hold_multiprocessors_kernel"


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


def attention_rates(kernels, layers, channels, batch, seq):
    """TFLOP/s of attention, forward and backward: 2 and 5 products over half of the square of queries and keys."""
    product = layers * batch * seq * seq * channels  # half of 2 T^2 C
    us = {"forward": 0.0, "backward": 0.0}
    for kernel in kernels:
        if family_of(kernel["name"]) == "attention":
            us["forward" if "forward" in kernel["name"] else "backward"] += kernel["us"]
    return {side: round(count * product / us[side] / 1e6, 1) for side, count in (("forward", 2), ("backward", 5))
            if us[side]}


def against_model(families, predicted):
    """Measured and predicted milliseconds of each part of the time model; `measured` of None has no prediction."""
    parts = {part: {"measured_ms": 0.0, "predicted_ms": round(predicted[part], 2)}
             for part in ("matmuls", "attention", "elementwise", "optimizer")}
    parts["other"] = {"measured_ms": 0.0, "predicted_ms": None}
    for family, row in families.items():
        parts[MODELLED.get(family, "other")]["measured_ms"] += row["us"] / 1e3
    for row in parts.values():
        row["measured_ms"] = round(row["measured_ms"], 2)
    return parts


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


def command_of(session, name):
    size, precision = name.split()[:2]
    model, batch = SIZES[size]
    return [session.program("train_gpt"), "-e", model, "-b", batch, "-t", SEQ, "-r", "none", *PRECISIONS[precision],
            *kernel_flags(name)]


def kernels_by_cupti(session, command, name, env=None):
    """The kernels of a run, from the library that CUDA loads into the program, and why there are none."""
    times = session.path("profile", name + ".json")
    os.makedirs(os.path.dirname(times), exist_ok=True)
    library = os.path.join(session.programs, "libkernel_times.so")
    cupti = find_library("libcupti.so.13", library_directories())
    if os.path.exists(times):
        os.remove(times)
    if not cupti or not os.path.exists(library):
        return [], "no libcupti.so.13"
    # last, because the directory may contain another version of cuBLASLt
    path = os.pathsep.join([*filter(None, [session.env.get("LD_LIBRARY_PATH")]), os.path.dirname(cupti)])
    env = {"CUDA_INJECTION64_PATH": library, "KERNEL_TIMES": times, "LD_LIBRARY_PATH": path, **(env or {})}
    done = session.run(command, 180, env, log="profile_" + name)
    return read_json(times)["kernels"] if os.path.exists(times) else [], done.tail()


def kernels_of_a_run(session, command, name):
    """Profiles one run: by CUPTI, or by ncu if there is no CUPTI."""
    kernels, output = kernels_by_cupti(session, command, name)
    if kernels:
        return "cupti", kernels
    ncu = find_tool("ncu")
    if ncu:
        flags = ["--csv", "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
        done = session.run([ncu, *flags, *command], 240, log="ncu_" + name)
        return "ncu", kernels_of_ncu(done.output)
    return output, []


def profile_of(session, name):
    size = name.split()[0]
    model, batch = SIZES[size]
    runs = []
    for steps in (4, 10):
        flags = ["--train", session.shard("train"), "--max-steps", steps, "--val-every", 0]
        how, kernels = kernels_of_a_run(session, [*command_of(session, name), *flags], f"{name} {steps}".replace(" ", "_"))
        if not kernels:
            return {"done": False, "why": how}
        runs.append(kernels)
    kernels = per_step(runs[1], runs[0], 6)
    families = by_family(kernels)
    plan = session.run([*command_of(session, name), "--dry-run", "--json"], 60).output
    predicted = json.JSONDecoder().raw_decode(plan[plan.index("{"):])[0]["time"]  # notes may stand before or behind it
    return {"how": how, "batch": batch, "ms_of_kernels": round(sum(k["us"] for k in kernels) / 1e3, 2),
            "launches": round(sum(k["launches"] for k in kernels)), "families": families,
            "against_model": against_model(families, predicted),
            "attention_tflops": attention_rates(kernels, *SHAPES[size], batch, SEQ),
            "published_attention_tflops": PUBLISHED_ATTENTION, "kernels": kernels[:60]}


# ---- multiprocessors held ------------------------------------------------------------------------------------------


def predicted_factor(kernel, held):
    """The time model's factor for kernels while multiprocessors of an H100 or H200 are held (llmc/plan/stages.cpp)."""
    divided_beforehand = family_of(kernel) == "matrix products" and "matmul_gelu" not in kernel  # cuBLASLt's
    return 2 if held and divided_beforehand else round(132 / (132 - held), 3)


def compared_launches(free, held):
    """Pairs the launches of a run without holds and of one with holds: (kernel, whether it ran inside a hold, ns without
    holds, ns). Both runs launch the same kernels in the same order, so the n-th launch of a kernel does the same work in
    both. Launches that are partly inside a hold are left out. Also returns the kernels whose counts differ.

    A launch that starts inside a hold finds all of the hold's blocks in place: those that waited have priority, and the
    kernel before it has ended.
    """
    before = {kernel["name"]: sorted(kernel["launches"]) for kernel in free}
    holds = [(start, start + ns) for kernel in held if HOLD in kernel["name"] for start, ns in kernel["launches"]]
    launches, not_paired = [], []
    for kernel in held:
        name = kernel["name"]
        if HOLD in name or name.startswith("["):  # copies and fills
            continue
        if len(before.get(name, [])) != len(kernel["launches"]):
            not_paired.append(name)
            continue
        for (_, ns_before), (start, ns) in zip(before[name], sorted(kernel["launches"])):
            overlapping = [hold for hold in holds if hold[0] < start + ns and start < hold[1]]
            inside = any(begin <= start and start + ns <= end for begin, end in overlapping)
            if inside or not overlapping:
                launches.append((name, inside, ns_before, ns))
    return launches, not_paired


def slowdown(launches, held):
    """A row for these launches: `ratio` is the time of launches inside holds over that of the same launches without
    holds; `between` is the same for launches outside of holds, and close to 1 if nothing else differed.
    """
    total = {inside: [sum(launch[2] for launch in launches if launch[1] == inside),
                      sum(launch[3] for launch in launches if launch[1] == inside)] for inside in (True, False)}
    ratio = {inside: round(ns / before, 3) if before else None for inside, (before, ns) in total.items()}
    return {"launches": sum(launch[1] for launch in launches), "us_free": round(total[True][0] / 1e3, 1),
            "us_held": round(total[True][1] / 1e3, 1), "ratio": ratio[True], "between": ratio[False],
            "predicted": predicted_factor(launches[0][0], held)}


def slowdowns(free, held, multiprocessors):
    """Rows by family and by kernel; cuBLASLt's matmuls and the matmuls with GELU are two families."""
    launches, not_paired = compared_launches(free, held)
    rows = {"families": {}, "kernels": {}}
    for launch in launches:
        family = "matmuls with GELU" if "matmul_gelu" in launch[0] else family_of(launch[0])
        rows["families"].setdefault(family, []).append(launch)
        rows["kernels"].setdefault(launch[0], []).append(launch)
    for key, table in rows.items():
        table = {name: slowdown(those, multiprocessors) for name, those in table.items()}
        rows[key] = dict(sorted(table.items(), key=lambda item: -item[1]["us_held"]))
    return {"holds": sum(kernel["count"] for kernel in held if HOLD in kernel["name"]), **rows, "not_paired": not_paired}


def while_held(run_with):
    """Runs once with each number of multiprocessors held, and compares with the run in which none are."""
    runs = {}
    for held in HELD:
        runs[held], output = run_with(held)
        if not runs[held] or any("launches" not in kernel for kernel in runs[held]):
            return {"done": False, "why": output if not runs[held] else "libkernel_times.so of this pack is too old"}
    found = {str(held): slowdowns(runs[0], runs[held], held) for held in HELD[1:]}
    for held, rows in found.items():
        factors = [f"{name} {row['ratio']} ({row['predicted']})" for name, row in rows["families"].items() if row["launches"]]
        print(f"  {held} held, measured (predicted): {', '.join(factors)}", flush=True)
    measured = [any(row["launches"] for row in rows["families"].values()) for rows in found.values()]
    return {"done": all(measured), "held": found}


def run_with_held(session, name, held):
    flags = ["--train", session.shard("train"), "--max-steps", 20, "--val-every", 0]
    return kernels_by_cupti(session, [*command_of(session, name), *flags], f"{name}_held_{held}".replace(" ", "_"),
                            {"HOLD_MULTIPROCESSORS": str(held)})


def invented_run(held):
    """Records for --dry: in 8 steps of two kernels, a hold contains the last 4, which take as long as predicted."""
    kernels, end = {"nvjet_sm90": [], "llmc::attention_forward_kernel": []}, 0
    for step in range(8):
        for name, launches in kernels.items():
            launches.append([end, round(1000 * (predicted_factor(name, held) if step >= 4 else 1))])
            end += launches[-1][1]
    if held:
        kernels[HOLD] = [[8000, end - 8000]]
    return [{"name": name, "count": len(launches), "launches": launches} for name, launches in kernels.items()], ""


def part6(session):
    part = Part(session, 6, "profile")
    of_held = "124M delayed, multiprocessors held"
    if session.dry:  # the host device has no kernels that CUPTI could see, so test only the arithmetic
        short = [{"name": "llmc::attention_forward_kernel", "count": 8, "ns": 8000}]
        longer = [{"name": "llmc::attention_forward_kernel", "count": 20, "ns": 20000},
                  {"name": "nvjet_sm90", "count": 12, "ns": 36000}]
        kernels = per_step(longer, short, 6)
        part.item("arithmetic", lambda: {"families": by_family(kernels), "kernels": kernels})
        part.item(of_held, lambda: while_held(invented_run))
    else:
        for name in ("124M bf16", "124M delayed", "124M bf16" + PORTABLE, "1558M delayed", "1558M bf16"):
            part.item(name, lambda: profile_of(session, name), 30)
        part.item(of_held, lambda: while_held(lambda held: run_with_held(session, "124M delayed", held)), 30)
    part.finish()
