"""Predicts how long a kernel takes on a card from its counted work. Used by predict.py.

A launch takes the longest of these times: issuing its instructions, each pipe's share of them, the passes of shared
memory and L1, L2, DRAM; and with tensor cores, the sum of theirs and of what cannot overlap with them. Then a fixed
time to start and end. Rates of memory and launches are the planner's (llmc/plan/time_model.cpp).
PREDICTIONS.md has the sources and the limits of the model.
"""
import dataclasses
import math

WARP, SECTOR = 32, 32
SCHEDULERS = 4  # per multiprocessor; each issues one warp instruction per clock
PORT = 64  # bytes per clock that a multiprocessor receives from L2
L2 = 46.6  # bytes per clock and multiprocessor from L2 when all load: 6154 for an H100, of DeepGEMM's heuristics
L1_SECTORS = 4  # per clock
MMA_SYNC = 8192  # operations of the largest mma.sync; a warp's share of a wgmma has more
NOT_ISSUED = ("parameter", "move")  # ptxas makes constants of the first, and drops most of the others


@dataclasses.dataclass(frozen=True)
class Rates:
    """The planner's constants for a card, from `train_gpt --dry-run --json`."""
    memory: float  # bytes per second of kernels that stream
    launch: float  # seconds
    tensor_share: float  # kernels with tensor cores reach this share of the rate that the sum of their times allows
    mma_sync_share: float  # of the tensor cores' rate


@dataclasses.dataclass(frozen=True)
class Card:
    name: str
    option: str  # the value of --gpu
    multiprocessors: int
    clock: float  # Hz under load
    threads: int  # per multiprocessor, like the next fields
    blocks: int
    shared: int
    lanes: dict  # results per clock by kind of instruction: "Throughput of Native Arithmetic Instructions"
    mma: dict  # operations per clock of tensor cores

    def seconds(self, cycles):
        return cycles / self.clock


def lanes(float32, float64, integer=64):
    return {"float32": float32, "float64": float64, "integer": integer, "convert": 64, "special": 16}


CARDS = {
    "H100": Card("H100 SXM", "h100", 132, 1.75e9, 2048, 32, 228 << 10, lanes(128, 64), {"bf16": 4096, "fp8": 8192}),
    "H200": Card("H200", "h200", 132, 1.75e9, 2048, 32, 228 << 10, lanes(128, 64), {"bf16": 4096, "fp8": 8192}),
    "RTX4090": Card("RTX 4090", "rtx4090", 128, 2.52e9, 1536, 24, 100 << 10, lanes(128, 2), {"bf16": 512, "fp8": 1024}),
    "RTX3090": Card("RTX 3090", "rtx3090", 82, 1.695e9, 1536, 16, 100 << 10, lanes(128, 2), {"bf16": 512}),
    "A100-40": Card("A100 SXM 40 GB", "a100-40gb", 108, 1.41e9, 2048, 32, 164 << 10, lanes(64, 32), {"bf16": 2048}),
    "A100-80": Card("A100 SXM 80 GB", "a100", 108, 1.41e9, 2048, 32, 164 << 10, lanes(64, 32), {"bf16": 2048}),
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


def tensor_cycles(card, rates, work):
    """Cycles of the tensor cores, and of the other instructions of the warps that wait for them."""
    operations = sum(work["tensor_operations"].values())
    if operations == 0:
        return 0, 0
    cycles = sum(n / card.mma["bf16" if kind == "bf16" else "fp8"] for kind, n in work["tensor_operations"].items())
    special = work["instructions"].get("special", 0) * WARP / card.lanes["special"]
    if operations > MMA_SYNC * work["instructions"]["tensor"]:  # wgmma: other warpgroups issue at the same time
        return cycles, special
    return cycles / rates.mma_sync_share, special + issued(work) / SCHEDULERS


def issued(work):
    return sum(n for kind, n in work["instructions"].items() if kind not in NOT_ISSUED)


def resources(card, rates, work, blocks):
    """Returns {resource: seconds} for one launch with `blocks` blocks."""
    everywhere = card.multiprocessors * busy(card, blocks)
    cycles = {"issue": issued(work) / SCHEDULERS, "tensor": sum(tensor_cycles(card, rates, work)) / rates.tensor_share}
    for kind, rate in card.lanes.items():
        cycles[kind] = work["instructions"].get(kind, 0) * WARP / rate
    cycles["shared and L1"] = (max(work["shared_passes"], work["instructions"].get("shared", 0)) +
                               work["global_sectors"] / L1_SECTORS)
    times = {name: card.seconds(n / everywhere) for name, n in cycles.items()}
    footprint = SECTOR * (work["footprint_read_sectors"] + work["footprint_written_sectors"])
    # Tiles for tensor cores bypass L1. Other kernels find data that they read again in L1.
    through_l2 = SECTOR * work["global_sectors"] if work["tensor_operations"] else footprint
    port = min(L2 * card.multiprocessors, PORT * min(blocks, card.multiprocessors))
    times["L2"] = card.seconds(through_l2 / port)
    times["DRAM"] = footprint / rates.memory
    return times


def kernel_time(card, rates, work):
    """Returns (seconds, limiting resource) for all launches of a kernel, whose sums are in `work`."""
    launches = max(work["launches"], 1e-9)
    times = resources(card, rates, work, max(work["blocks"] / launches, 1))
    bound = max(times, key=times.get)
    start = rates.launch * launches
    return times[bound] + start, "start" if times[bound] < start else bound
