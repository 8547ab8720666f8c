"""Parts 4 and 5: GPT-2 124M on real data in BF16 and FP8, compared; and tokens per second by model, precision and
kernels, in runs of a minute at 524,288 tokens a step and in runs of a micro-step a step, compared with published ones.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys

from tools import ROOT, GpuWatch, Part, found_by_inspect, gpu_state, read_json, read_records

PRECISIONS = {
    "bf16": ["--precision", "bf16"],
    "delayed": ["--precision", "fp8", "--fp8-recipe", "delayed"],  # the default: all,-first,+lm_head
    "current": ["--precision", "fp8", "--fp8-recipe", "current"],
    "block": ["--precision", "fp8", "--fp8-recipe", "block"],
    "mxfp8": ["--precision", "fp8", "--fp8-recipe", "mxfp8", "--fp8-emulation"],
    # Only for part 4: chance (BF16 with two micro-steps, and gradients rounded to BF16 stochastically, so with other
    # rounding in any model), and where a gap of FP8 comes from.
    "control": ["--precision", "bf16", "--gradients", "bf16"],
    "all-blocks": ["--precision", "fp8", "--fp8-layers", "all"],
    "all-blocks-constant": ["--precision", "fp8", "--fp8-layers", "all", "--fp8-pow2-scales"],  # fp8_weight_scales.md
    "bf16-head": ["--precision", "fp8", "--fp8-layers", "all,-first"],
    "bf16-forward": ["--precision", "fp8", "--fp8-layers", "all,-forward,+lm_head"],
    "grad-e4m3": ["--precision", "fp8", "--fp8-grad", "e4m3"],
    "slow-sums": ["--precision", "fp8", "--fp8-fast-accum", "none"],
    "bf16-at-the-end": ["--precision", "fp8", "--fp8-until", "94%"],
    "first-qkv-and-fc-in-bf16": ["--precision", "fp8", "--fp8-layers",
                                 "all,-block0.qkv,-block0.fc,+lm_head"],
    "first-and-last-in-bf16": ["--precision", "fp8", "--fp8-layers", "all,-first,-last,+lm_head"],
}
SEEDS = (1337, 1, 2)
STEPS, WARMUP = 700, 60
BRANCH = 350  # step of the BF16 run from which others branch off
ONLY_TRAINING = {"--fp8-grad", "--fp8-fast-accum", "--fp8-until", "--gradients"}  # flags that `eval` does not have
MAX_GAP = "0.5%"  # of the validation loss, once the loss falls slowly
VARIANTS = ("delayed", "control", "bf16-forward", "all-blocks", "all-blocks-constant", "bf16-head",
            "first-qkv-and-fc-in-bf16", "grad-e4m3", "bf16-at-the-end", "block", "first-and-last-in-bf16", "current",
            "slow-sums")
GRADIENTS = ("bf16", "delayed", "block", "grad-e4m3")  # kinds that the last weights of BF16 are given
# --fp8-layers whose forward pass in FP8 is compared with BF16's at the BF16 run's last weights, by KL.
LAYERS = ("all", "none,+qkv", "none,+attn_proj", "none,+fc", "none,+fc_proj", "all,-block0.qkv,-block0.fc", "all,-first",
          "all,-last", "all,-first,-last")


def runs_in_order(session):
    """The runs, most informative first, as names with the step from which they branch off the first run, or with their
    seed: BF16, the variants from its middle on, the variants from the start, other seeds.
    """
    variants = VARIANTS[:2] if session.dry else VARIANTS
    branches = [(name, "from", branch_step(session)) for name in variants]
    if session.dry:
        return [("bf16", "seed", SEEDS[0]), *branches, ("delayed", "seed", SEEDS[0])]
    others = [(name, "seed", seed) for seed in SEEDS[1:] for name in ("bf16", "delayed")]
    return [("bf16", "seed", SEEDS[0]), *branches, *((name, "seed", SEEDS[0]) for name in variants), *others,
            ("mxfp8", "seed", SEEDS[0])]


def model_flags(session):
    if session.dry:
        return ["--layers", 1, "--channels", 128, "--heads", 2, "--context", 64, "--seq", 64]
    return ["-e", "d12", "-t", 1024]


def flags_of_a_run(session, name, seed):
    train, val = session.shard("train"), session.shard("val")
    if not train or not val:
        raise SystemExit(f"{session.data}: no *train*.bin and *val*.bin there (nor .bin.xz)")
    common = ["--train", train, "--val", val, "--seed", seed, *model_flags(session), *PRECISIONS[name], "--val-batches",
              -1]
    if name == "bf16":
        common += ["--checkpoint-every", branch_step(session)]
    if session.dry:
        return [*common, "--batch", 2, "--max-steps", 6, "--warmup", 2, "--val-every", 3]
    # 65,536 tokens per step in one micro-step, which fits on the card.
    return [*common, "-b", 32 if name == "control" else 64, "-d", 65536, "-x", STEPS, "-u", WARMUP, "-l", 6e-4, "-v",
            100]


def branch_step(session):
    return 3 if session.dry else BRANCH


def loss_of_weights(session, weights, flags, name):
    """The validation loss of a run's last weights. With --precision bf16 it is without the rounding of FP8's forward
    pass, which tells a gap of the weights from a gap of the validation.
    """
    out, size = session.path("eval.json"), [] if session.dry else ["-b", 64, "-t", 1024]
    done = session.run([session.program("train_gpt"), "eval", "--from", weights, "--val", session.shard("val"), *size,
                        *flags, "--out", out], 60, log=f"eval_{name}")
    return read_json(out)["val_loss"] if done.code == 0 else done.tail(300)


def divergence_of_layers(session, weights, layers, name):
    """KL(BF16 || FP8) and the difference of the losses with their errors, on 16 sequences."""
    out, size = session.path("eval.json"), ["-b", 2] if session.dry else ["-b", 16, "-t", 1024]
    done = session.run([session.program("train_gpt"), "eval", "--from", weights, "--val", session.shard("val"), *size,
                        "-m", 1, "--against", "bf16", "--fp8-layers", layers, "--out", out], 60, log=f"eval_{name}")
    return read_json(out)["against_bf16"] if done.code == 0 else done.tail(300)


def gradient_errors(session, weights, kinds, name):
    """For each kind, the cosine and the gain of its gradient next to that in FP32, of 16 sequences at a run's last
    weights: of all gradients together, and the tensor with the smallest cosine. A gap between losses is mostly chance
    where these are near 1.
    """
    errors = {}
    for kind in kinds:
        precision, flags = PRECISIONS[kind][1], PRECISIONS[kind][2:]
        size = ["--batch", 2, "--seq", 64] if session.dry else ["--batch", 16, "--seq", 1024]
        done = session.run([session.program("train_gpt"), "inspect", "--from", weights, "--train",
                            session.shard("train"), *size, *flags, "--json"], 60, log=f"gradients_{name}_{kind}")
        if done.code != 0:
            errors[kind] = done.tail(300)
            continue
        found = found_by_inspect(done.output)
        result = found[precision]
        tensor, worst = min(result["gradients"].items(), key=lambda item: item[1]["cosine"] or 0.0)
        errors[kind] = {"loss": result["loss"], "loss_in_fp32": found["fp32"]["loss"],
                        **{key: result[key] for key in ("cosine", "gain")},
                        "matmul_errors": found["matmul_errors"] if precision == "fp8" else {},
                        "worst": {"tensor": tensor, "cosine": worst["cosine"], "gain": worst["gain"]}}
    return errors


def measure_run(session, name, seed):
    place = session.path("training", f"{name}_{seed}")
    flags = [*flags_of_a_run(session, name, seed), "--out", place, "--overwrite"]
    done = session.run([session.program("train_gpt"), *flags], session.time_left(), log=f"training_{name}_{seed}")
    weights = os.path.join(place, "model.safetensors")
    of_weights, of_layers, gradients = {}, {}, {}
    if os.path.exists(weights):
        for precision, precision_flags in {"bf16": PRECISIONS["bf16"], name: PRECISIONS[name]}.items():
            if not ONLY_TRAINING & set(precision_flags):
                of_weights[precision] = loss_of_weights(session, weights, precision_flags, f"{name}_{seed}_{precision}")
        if name == "bf16":
            for layers in LAYERS[:2] if session.dry else LAYERS:
                of_layers[layers] = divergence_of_layers(session, weights, layers, f"{name}_{seed}_{layers}")
        # The last steps of a run with --fp8-until were in BF16, and the control's matmuls are those of BF16.
        kinds = [] if {"--fp8-until", "--gradients"} & set(PRECISIONS[name]) else [name]
        if name == "bf16":
            kinds = ["bf16", "grad-e4m3", "delayed"] if session.dry else GRADIENTS
        gradients = gradient_errors(session, weights, kinds, f"{name}_{seed}")
        os.remove(weights)
    losses = re.findall(r"val_loss (\S+)", done.output)
    return {"done": done.code == 0, "code": done.code, "run": os.path.relpath(place, session.out),
            "val_loss": losses[-1] if losses else None, "val_loss_of_weights": of_weights,
            "divergence_of_layers": of_layers, "gradient_errors": gradients,
            **({} if done.code == 0 else {"output": done.tail()})}


def measure_branch(session, name):
    """Continues from the checkpoint of the BF16 run. Returns the gaps to that run: of the training loss, in windows of 50
    steps, and of the last validation loss. Runs from one checkpoint have not drifted apart by chance.
    """
    step, whole = branch_step(session), session.path("training", f"bf16_{SEEDS[0]}")
    place = session.path("training", f"{name}_from_{step}")
    shutil.rmtree(place, ignore_errors=True)
    done = session.run([session.program("train_gpt"), *flags_of_a_run(session, name, SEEDS[0]), "--resume",
                        os.path.join(whole, "checkpoints", f"step_{step:08}"), "--checkpoint-every", 0,
                        "--checkpoint-minutes", 0, "--out", place], session.time_left(),
                       log=f"training_{name}_from_{step}")
    if done.code != 0:
        return {"done": False, "code": done.code, "output": done.tail()}
    os.remove(os.path.join(place, "model.safetensors"))
    ours, theirs = ({r["step"]: r for r in read_records(run) if "loss" in r} for run in (place, whole))
    width, gaps = 1 if session.dry else 50, {}
    for first in range(step + 1, max(ours) + 1, width):
        window = range(first, min(first + width, max(ours) + 1))
        gaps[f"{window[0]} to {window[-1]}"] = sum(ours[i]["loss"] for i in window) / sum(
            theirs[i]["loss"] for i in window) - 1
    last, last_of_bf16 = ([r["val_loss"] for r in read_records(run) if "val_loss" in r][-1] for run in (place, whole))
    return {"done": True, "run": os.path.relpath(place, session.out), "training_gaps": gaps,
            "val_loss": last, "val_gap": last / last_of_bf16 - 1}


def compare(session, items):
    """Runs scripts/compare_runs.py for every seed that has a BF16 run and others."""
    reports = {}
    for seed in SEEDS:
        done = [name for name in PRECISIONS if items.get(f"{name} {seed}", {}).get("done")]
        if "bf16" not in done or len(done) < 2:
            continue
        places = [session.path("training", f"{name}_{seed}") for name in done]
        start = 3 if session.dry else 200
        command = [sys.executable, os.path.join(ROOT, "scripts", "compare_runs.py"), *places, "--from", str(start),
                   "-o", session.path("training", f"compare_{seed}.png")]
        if not session.dry:
            command += ["--max-gap", MAX_GAP]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        with open(session.path("training", f"compare_{seed}.txt"), "w", encoding="utf-8") as file:
            file.write(result.stdout + result.stderr)
        reports[str(seed)] = {"code": result.returncode, "runs": done, "text": result.stdout + result.stderr}
        print(result.stdout + result.stderr, flush=True)
    return reports


def part4(session):
    part = Part(session, 4, "training")
    longest = 5 if session.dry else 100
    for name, what, number in runs_in_order(session):
        if what == "from":
            part.item(f"{name} from {number}", lambda: measure_branch(session, name), longest * 0.6)
            continue
        item = part.item(f"{name} {number}", lambda: measure_run(session, name, number), longest * 1.05)
        if item and item.get("done"):
            longest = max(longest, item["seconds"]) if not session.dry else 1
    part.finish(comparisons=compare(session, part.result["items"]))


# ---- speed ---------------------------------------------------------------------------------------------------------

# (model, sequences of 1024 tokens per micro-step): each fits into 141 GB in FP8 with -r none.
SIZES = {"124M": ("d12", 64), "355M": ("d24", 32), "774M": ("d36", 32), "1558M": ("d48", 16)}
STEP = 524_288  # tokens of a step, as llm.c and GPT-2 train: a micro-step is a small part of it
# Runs of a minute: model, sequences of a micro-step, precision, tokens of a step, further flags.
MINUTE = ", a minute"
MINUTES = {
    "124M delayed" + MINUTE: ("d12", 64, "delayed", STEP, ["-r", "none"]),
    "1558M delayed" + MINUTE: ("d48", 16, "delayed", STEP, ["-r", "none"]),
    "8B delayed" + MINUTE: ("llama3-8b", 8, "delayed", STEP // 4, ["--fit", "--offload", "optimizer"]),
    "124M bf16" + MINUTE: ("d12", 64, "bf16", STEP, ["-r", "none"]),
    "1558M bf16" + MINUTE: ("d48", 16, "bf16", STEP, ["-r", "none"]),
}
PORTABLE = " portable"  # ends the names of items without the kernels that only newer cards have

# Published tokens per second of one GPU with 1024 tokens a sequence: (model, precision, card, tokens/s, source).
PUBLISHED = [
    ("124M", "bf16", "H100", 468_000, "llm.c, one of eight with their communication: 140 ms for 524,288 tokens "
                                      "(modded-nanogpt records/2024-10-13_llmc)"),
    ("1558M", "bf16", "H100", 46_800, "llm.c, one of eight with their communication (llm.c#677)"),
    ("1558M", "delayed", "H100", 73_000, "llmq, Qwen2.5-1.5B (llmq benchmarks/H100x1.md)"),
    ("8B", "delayed", "H100", 19_200, "llmq, Qwen2.5-7B with BF16 masters (llmq benchmarks/H100x1.md)"),
    ("1558M", "delayed", "H100", 47_600, "Transformer Engine, batch 14 (ROCm/TransformerEngine#72)"),
    ("1558M", "delayed", "H200", 62_000, "Transformer Engine, batch 38 (ROCm/TransformerEngine#72)"),
]


def kernel_flags(name):
    return ["--kernels", "portable"] if name.endswith(PORTABLE) else []


def against_published(items):
    """For every published rate that this session measured for a minute: both rates, and ours over theirs."""
    rows = []
    for model, precision, card, published, source in PUBLISHED:
        measured = items.get(f"{model} {precision}{MINUTE}", {}).get("tokens_per_s")
        if measured:
            rows.append({"model": model, "precision": precision, "tokens_per_s": measured, "published": published,
                         "published_card": card, "ratio": round(measured / published, 3), "source": source})
    return rows


def rate(batch, ms, tokens):
    """The rate of a short run from the milliseconds of its steps, of which the first third warms up."""
    middle = statistics.median(ms[len(ms) // 3:])
    return {"batch": batch, "ms": middle, "tokens_per_s": round(tokens / middle * 1e3), "ms_of_steps": ms}


def long_rate(batch, ms, tokens, warm_up_ms=10_000):
    """The rate that a long run has: the mean of all steps after the card is warm, because a card at its power limit
    slows single steps down.
    """
    warm = next((i for i in range(1, len(ms)) if sum(ms[:i]) >= warm_up_ms), len(ms) // 3)
    mean = statistics.fmean(ms[warm:])
    return {"batch": batch, "ms": mean, "median_ms": statistics.median(ms[warm:]),
            "tokens_per_s": round(tokens / mean * 1e3), "ms_of_steps": ms}


def steps_of_speed(session, model, batch, flags, log):
    """Trains, and returns how the run ended, the milliseconds of its steps, and what its last line says."""
    shape = ["--layers", 1, "--channels", 128, "--heads", 2, "--context", 64, "--batch", 2, "--seq", 64]
    if not session.dry:
        shape = ["-e", model, "-b", batch, "-t", 1024]
    with GpuWatch() as card:
        done = session.run([session.program("train_gpt"), "--train", session.shard("train"), *shape, *flags,
                            "--log-every", 1, "--val-every", 0], 240, log=log)
    lines = [line for line in done.output.splitlines() if line.lstrip().startswith("step ")]
    ms = [float(value) for line in lines if (value := next(iter(re.findall(r"([\d.]+) ms", line)), None))]
    memory = re.findall(r"mem (\S+ \S+)", lines[-1]) if lines else []
    mfu = re.findall(r"MFU ([\d.]+)%", lines[-1]) if lines else []
    return done, ms, {"mfu_percent_of_last_step": float(mfu[0]) if mfu else None,
                      "memory": memory[0] if memory else None, **card.seen}


def speed_of(session, model, batch, precision, steps, flags):
    done, ms, more = steps_of_speed(session, model, batch,
                                    ["-r", "none", *PRECISIONS[precision], *flags, "--max-steps", steps],
                                    "_".join(["speed", model, precision, *flags[1:]]))
    if done.code != 0 or len(ms) < steps:
        return {"done": False, "code": done.code, "output": done.tail()}
    return {**rate(batch, ms, 128 if session.dry else batch * 1024), **more}


def minute_of(session, model, batch, precision, tokens, flags):
    """A minute at `tokens` tokens a step, as a real run has them: the rate to quote."""
    tokens = 256 if session.dry else tokens
    length = ["--max-steps", 4] if session.dry else ["--max-steps", 100_000, "--max-minutes", 1]
    done, ms, more = steps_of_speed(session, model, batch,
                                    [*PRECISIONS[precision], *flags, "--total-batch", tokens, *length],
                                    f"minute_{model}_{precision}")
    if done.code != 0 or len(ms) < 4:
        return {"done": False, "code": done.code, "output": done.tail()}
    return {"tokens_per_step": tokens, **long_rate(batch, ms, tokens), **more}


def part5(session):
    part = Part(session, 5, "speed")
    sizes = dict(list(SIZES.items())[:1]) if session.dry else SIZES
    steps = 4 if session.dry else 15
    for name in ["124M bf16" + MINUTE] if session.dry else MINUTES:
        part.item(name, lambda: minute_of(session, *MINUTES[name]), 0 if session.dry else 80)
    names = []
    for size in sizes:
        for precision in ("bf16", "delayed"):
            names.append(f"{size} {precision}")
            if size in ("124M", "1558M"):
                names.append(f"{size} {precision}{PORTABLE}")  # right after the other, on the same warm card
    if not session.dry:  # 1600 channels are not a whole number of blocks
        names += [f"{size} {recipe}" for recipe in ("current", "block") for size in sizes
                  if (size, recipe) != ("1558M", "block")]
    for name in names:
        size, precision = name.split()[:2]
        model, batch = sizes[size]
        part.item(name, lambda: speed_of(session, model, batch, precision, steps, kernel_flags(name)),
                  0 if session.dry else 45)
    part.finish(against_published=against_published(part.result["items"]), gpu_after={} if session.dry else gpu_state())
