// What --dry-run prints: the size of a run in parameters, FLOPs and memory, and the shortest time a step could take on
// a named card. Also the check that a run fits into memory, made before anything is allocated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/device/runtime.h"
#include "llmc/fp8/recipe.h"
#include "llmc/model/config.h"
#include "llmc/run/gpu_table.h"
#include "llmc/train/memory_by_kind.h"

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
// several. `shard_ranks` as in PlanInputs.
int nccl_communicators(int ranks, int shard_ranks);

struct PlanInputs {
    int batch = 4;            // B
    int seq = 1024;           // T
    int64_t total_batch = 0;  // tokens a step over all ranks; 0 = one micro-step
    int ranks = 1;
    int zero = 0;         // from stage 1 on a rank updates its slice alone
    int shard_ranks = 0;  // ranks that share slices; 0: all
    std::string precision = "bf16";
    std::string fp8_layers = "all";  // which linear layers an FP8 step has in FP8
    std::string recompute = "gelu";
    MemoryByKind memory;
    size_t reserve = 0;          // to be left free beside it
    size_t available = 0;        // bytes of device memory; 0 = the table's, if `gpu` is set
    std::optional<GpuSpec> gpu;  // the card to plan for
    std::string device_name;     // shown when set; else the table's name
};

// Milliseconds of one optimizer step on one rank.
struct StepTime {
    double block_gemms = 0, lm_head = 0, attention = 0, elementwise = 0, recompute = 0;
    double cross_entropy = 0, embedding = 0, optimizer = 0;
    double blocks_forward = 0, blocks_backward = 0;  // of the above, what communication can hide behind
    double total() const {
        return block_gemms + lm_head + attention + elementwise + recompute + cross_entropy + embedding + optimizer;
    }
};

// A step in `precision`, "bf16" or "fp8", with every kernel alone at the best rate measured for its kind: products at
// max(FLOPs, bytes), attention at FlashAttention-3's rates, everything else at its bytes. No gaps, no overlap, no
// communication. In FP8 the linear layers of inputs.fp8_layers run at the FP8 rate and their operands are quantized, in
// both layouts, by the kernels that produce them; attention and lm_head are as in BF16.
StepTime ideal_step_time(const ModelConfig& model, const PlanInputs& inputs, const GpuSpec& gpu,
                         const std::string& precision);

// What --dry-run and --estimate-scaling call the device.
std::string card_name(const PlanInputs& inputs);
// Bytes of its memory; 0 = not known.
size_t available_memory(const PlanInputs& inputs);
int64_t tokens_a_step(const PlanInputs& inputs);
int64_t micro_steps(const PlanInputs& inputs);

std::string describe_plan(const ModelConfig& model, const PlanInputs& inputs);

// Throws Error(no_resources) when `needed` and `reserve` are more than `available` (0 = not known: never).
void check_memory(const MemoryByKind& needed, size_t reserve, size_t available, const std::string& device_name);

// What the reserve was for, seen afterwards: of the memory that is gone since a time with `free_before` bytes free,
// what did not go into arenas. 0 if there is more free than that explains: others share the device.
size_t memory_outside(size_t free_before, size_t free_now, size_t arenas);

}  // namespace llmc
