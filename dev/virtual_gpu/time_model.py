"""Predicts how long a kernel takes on a card from its work: the time of the resource that it needs longest. Used by
predict.py.

A launch takes the longest of these times: issuing its instructions, each pipe's share of them, the passes of shared
memory and L1, L2, DRAM, and the tensor cores. A fixed time to start and end is added. PREDICTIONS.md has the sources
and the limits of the model.
"""
import dataclasses
import math

LAUNCH = 2e-6  # seconds to start and drain a launch: assumed
WARP, SECTOR = 32, 32
SCHEDULERS = 4  # per multiprocessor; each issues one warp instruction per clock
PORT = 64  # bytes per clock that a multiprocessor receives from L2
L2 = 13.8  # bytes per clock and multiprocessor from L2 when all load: 3.6 TB/s, measured on an H100 at 1.98 GHz
L1_SECTORS = 4  # per clock
DRAM_SHARE = 0.9  # of the data sheet's bandwidth: reached by a plain copy on H100 and H200
NOT_ISSUED = ("parameter",)  # these become constants of the instructions that use them


@dataclasses.dataclass(frozen=True)
class Card:
    name: str
    option: str  # the value of --gpu
    multiprocessors: int
    clock: float  # Hz, the maximum
    dram: float            # bytes/s
    threads: int  # per multiprocessor, like the next fields
    blocks: int
    shared: int
    lanes: dict  # results per clock by kind of instruction: "Throughput of Native Arithmetic Instructions"
    mma: dict  # operations per clock that mma.sync reaches
    products: dict  # operations per second that the library's large products reach

    def seconds(self, cycles):
        return cycles / self.clock


def lanes(float32, float64, integer=64):
    return {"float32": float32, "float64": float64, "integer": integer, "convert": 64, "special": 16}


# mma.sync reaches 67 % of 4096 (BF16) and 8192 (FP8) on Hopper; only wgmma reaches the full rate. Products use the
# planner's fractions (llmc/plan/plan.cpp) of the data sheet's peaks.
CARDS = {
    "H100": Card("H100 SXM", "h100", 132, 1.98e9, 3.35e12, 2048, 32, 228 << 10, lanes(128, 64),
                 {"bf16": 0.67 * 4096, "fp8": 0.67 * 8192},
                 {"bf16": 989.4e12 * 750 / 989.4, "fp8": 1978.9e12 * 1350 / 1978.9}),
    "RTX4090": Card("RTX 4090", "rtx4090", 128, 2.52e9, 1.008e12, 1536, 24, 100 << 10, lanes(128, 2),
                    {"bf16": 512, "fp8": 1024},
                    {"bf16": 165.2e12 * 750 / 989.4, "fp8": 330.3e12 * 1350 / 1978.9}),
    "RTX3090": Card("RTX 3090", "rtx3090", 82, 1.695e9, 0.936e12, 1536, 16, 100 << 10, lanes(128, 2),
                    {"bf16": 512}, {"bf16": 71e12 * 750 / 989.4}),
    "A100-40": Card("A100 SXM 40 GB", "a100-40gb", 108, 1.41e9, 1.555e12, 2048, 32, 164 << 10, lanes(64, 32),
                    {"bf16": 2048}, {"bf16": 312e12 * 750 / 989.4}),
    "A100-80": Card("A100 SXM 80 GB", "a100", 108, 1.41e9, 2.039e12, 2048, 32, 164 << 10, lanes(64, 32),
                    {"bf16": 2048}, {"bf16": 312e12 * 750 / 989.4}),
}


def occupancy(card, registers, threads, shared):
    """Blocks per multiprocessor, computed like dev/virtual_gpu/occupancy.cpp for the simulated card."""
    warps = -(-threads // WARP)
    limits = [card.blocks, card.threads // WARP // warps, card.shared // (-(-(shared + 1024) // 128) * 128)]
    if registers:
        a_warp = -(-registers * WARP // 256) * 256
        limits.append(65536 // 4 // a_warp * 4 // warps)
    return max(1, min(limits))


def busy(card, blocks):
    """The fraction of the multiprocessors' time that blocks of equal length fill."""
    return blocks / (card.multiprocessors * math.ceil(blocks / card.multiprocessors))


def resources(card, work, blocks):
    """Returns {resource: seconds} for one launch with `blocks` blocks."""
    everywhere = card.multiprocessors * busy(card, blocks)
    cycles = {"issue": sum(n for kind, n in work["instructions"].items() if kind not in NOT_ISSUED) / SCHEDULERS}
    for kind, rate in card.lanes.items():
        cycles[kind] = work["instructions"].get(kind, 0) * WARP / rate
    cycles["shared and L1"] = (max(work["shared_passes"], work["instructions"].get("shared", 0)) +
                               work["global_sectors"] / L1_SECTORS)
    for kind, operations in work.get("tensor_operations", {}).items():
        cycles["tensor"] = cycles.get("tensor", 0) + operations / card.mma["bf16" if kind == "bf16" else "fp8"]
    times = {name: card.seconds(n / everywhere) for name, n in cycles.items()}
    footprint = SECTOR * (work["footprint_read_sectors"] + work["footprint_written_sectors"])
    # Tiles for tensor cores bypass L1. Other kernels find data that they read again in L1.
    through_l2 = SECTOR * work["global_sectors"] if work["mma"] else footprint
    port = min(L2 * card.multiprocessors, PORT * min(blocks, card.multiprocessors))
    times["L2"] = card.seconds(through_l2 / port)
    times["DRAM"] = footprint / (card.dram * DRAM_SHARE)
    return times


def kernel_time(card, work):
    """Returns (seconds, limiting resource) for all launches of a kernel, whose sums are in `work`."""
    launches = max(work["launches"], 1e-9)
    times = resources(card, work, max(work["blocks"] / launches, 1))
    bound = max(times, key=times.get)
    return times[bound] + LAUNCH * launches, "start" if times[bound] < LAUNCH * launches else bound


def product_time(card, m, n, k, types, reads_c, head=False):
    """Returns (seconds, limiting resource) of one matrix product."""
    size = {"fp32": 4, "bf16": 2}
    a, b, d = (size.get(t, 1) for t in types)
    moved = a * m * k + b * k * n + d * m * n * (2 if reads_c else 1)
    work = 2 * m * n * k / card.products["bf16" if types[0] == "bf16" else "fp8"]
    dram = moved / (card.dram * DRAM_SHARE)
    return max(work, dram) + LAUNCH, "tensor" if work > dram else "DRAM"
