// What --dry-run prints: the size of a run in parameters, FLOPs and memory, and the shortest time that a step could
// take on a named card. Also the check that a run fits into memory, made before anything is allocated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/fp8/recipe.h"
#include "llmc/model/config.h"
#include "llmc/plan/card_rates.h"
#include "llmc/plan/gpu_table.h"
#include "llmc/shard/arena.h"

namespace llmc {

// What libraries take of a GPU beside the arenas, and only when they are first used: the modules of kernels that CUDA
// and cuBLASLt load, NCCL's buffers. Estimates that leave room, not measured; a run notes what was taken
// (memory_outside).
constexpr size_t kLibraryReserve = size_t{1} << 30;
constexpr size_t kCommunicatorReserve = size_t{1} << 29;
constexpr size_t memory_reserve(int communicators) {
    return kLibraryReserve + kCommunicatorReserve * static_cast<size_t>(communicators);
}
// That a rank has over NCCL: the world's, one for weights, one for gradients, and one between groups where there are
// several. `shard_ranks`: of a group; 0: all.
int nccl_communicators(int ranks, int shard_ranks);

// Throws Error(no_resources) when `needed` and `reserve` are more than `available` (0 = not known: never).
void check_memory(const MemoryByKind& needed, size_t reserve, size_t available, const std::string& device_name);

// A run, and the card to plan for.
struct PlanInputs {
    GpuSpec gpu;
    int batch = 4, seq = 1024, micro_steps = 1, ranks = 1;
    int zero = 0, shard_within = 0;
    std::string precision = "bf16";
    std::string fp8_layers = "all";  // which linear layers an FP8 step has in FP8
    std::string recompute = "gelu";
    std::string optimizer = "adamw", muon_ns = "k", adam_moments = "fp32";
    std::string reduce = "fp32";
    MeasuredRates measured = {};
    int64_t tokens() const { return int64_t{batch} * seq * micro_steps * ranks; }  // of a step
    size_t available() const { return static_cast<size_t>(gpu.memory_gib * (size_t{1} << 30)); }
};

// Milliseconds of one optimizer step on one rank, with every kernel alone at the rate that is known for its kind
// (card_rates.h): products at their FLOPs, attention at FlashAttention-3's rates, everything else at its bytes. No
// gaps, no overlap, no communication. Recomputation is in the kinds that it repeats.
struct StepTime {
    double products = 0, attention = 0, elementwise = 0, optimizer = 0;
    double blocks_forward = 0, blocks_backward = 0;  // of the above, what communication can hide behind
    double total() const { return products + attention + elementwise + optimizer; }
};

// `precision`: "bf16" or "fp8": the linear layers of inputs.fp8_layers run at the FP8 rate and their operands are
// quantized, in both layouts, by the kernels that produce them; attention and lm_head are as in BF16. `slices`: of the
// optimizer's work, of which a rank does one.
StepTime ideal_step_time(const ModelConfig& model, const PlanInputs& inputs, const std::string& precision, int slices);

// How long a run is. `hours` are predicted; absent if they cannot be.
struct RunLength {
    int64_t steps = 0, tokens = 0;
    std::optional<double> hours;
    double gpu_hours(int ranks) const { return hours.value_or(0) * ranks; }
};
std::string describe_length(const RunLength& length, int ranks);

std::string describe_plan(const ModelConfig& model, const PlanInputs& inputs, const MemoryByKind& memory,
                          size_t reserve, int slices);

}  // namespace llmc
