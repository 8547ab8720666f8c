// The plan of a run that has not started: its size in parameters and FLOPs, the memory and traffic of a rank in each
// ZeRO stage, and the time of a step on a card. --dry-run and --estimate-scaling print it, and every run checks that it
// fits into memory before it allocates anything.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/kernels/attention.h"
#include "llmc/linear/matmul.h"
#include "llmc/plan/cards.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"
#include "llmc/train/config.h"

namespace llmc {

// ---- the time of kernels and of a step (time_model.cpp) -------------------------------------------------------------
// The one model behind --dry-run and --estimate-scaling. Its constants come from measurements of this
// program on an H100 and from published ones of other programs' kernels. A test holds it to measured steps of this
// program, and to published ones of llm.c and llmq (test/plan/time_model.cpp). dev/notes/performance.md has sources and
// errors.

// A run to plan, and the card to plan it for.
struct PlannedRun {
    TrainerConfig config;
    int ranks = 1;
    GpuSpec gpu = {};
    MeasuredRates measured = {};
    int64_t tokens() const { return int64_t{config.batch} * config.seq * config.micro_steps * ranks; }  // of a step
    size_t available() const { return static_cast<size_t>(gpu.memory_gib * (size_t{1} << 30)); }
};

// Milliseconds to start and drain a kernel: assumed.
constexpr double kLaunch = 2e-3;
// Element-wise kernels reach this share of a plain copy's rate. Measured on an H100 80GB HBM3 (driver 580.159.04,
// 2026-11-27), where a copy has 2.85 TB/s: 0.92 in FP8 steps of GPT-2 124M, 0.94 in BF16, 0.88 in FP8 steps of six
// layers of 1558M.
constexpr double kElementWiseShare = 0.92;
// Tensor-core kernels of our own reach this share of the rate that the sum of their resources' times allows, as
// FlashAttention-2 and -3 do at T = 1024.
constexpr double kTensorKernelShare = 0.8;

// Milliseconds of kernels on a card.
class TimeModel {
public:
    TimeModel(const GpuSpec& gpu, const MeasuredRates& measured) : gpu_(gpu), card_(gpu, measured) {}

    // A product with a result of M x N and K terms in each sum. FP8 accumulates in full precision (split) or not
    // (fast). With a scale per block it is split; a weight's gradient is a kind of its own there.
    enum class Kind { bf16, fp8_fast, fp8_split, fp8_blocks, fp8_blocks_wgrad };
    struct Matmul {
        double M, N, K;
        Kind kind;
        double result_bytes = 2;  // written per element
        double read_bytes = 0;    // read per element, if the product adds to the result
    };
    double matmul(const Matmul& product) const;
    // A product with GELU, or with GELU's gradient, in its epilogue: bf16, fp8_fast (forward) or fp8_split (backward).
    double matmul_gelu(double M, double N, double K, Kind kind) const;
    // Causal attention in this number of layers, with the kernels that the card has for these heads.
    struct Attention {
        double forward, backward;
        double logits = 0;  // attention_max_logits()
    };
    Attention attention(double layers, int B, int T, const AttentionHeads& heads) const;
    // The time of attention at a rate that counts this many products (2 forward, 5 backward) over half of the square,
    // for `tokens` tokens in sequences of T.
    static double attention_at(double tflops, int products, double tokens, double T, double channels);
    double element_wise(double bytes) const { return bytes / (element_wise_rate() * 1e-3); }
    // AdamW and the gradients' norm. On the card named above they read and wrote 2.97 TB/s at 1558M, 2.8 at 124M.
    double optimizer(double bytes) const { return bytes / (card_.bandwidth_gbs * 1e6); }
    double launches(double count) const { return kLaunch * count; }
    double element_wise_rate() const { return kElementWiseShare * card_.bandwidth_gbs * 1e9; }  // bytes per second
    bool is_hopper() const { return gpu_.capability == 90; }
    double mma_sync_share() const;  // rate of mma.sync, relative to the tensor cores' peak
    const CardRates& card() const { return card_; }

private:
    GpuSpec gpu_;
    CardRates card_;
};

// Milliseconds of one optimizer step on one rank, kernel after kernel, without communication. Recomputation counts in
// the kinds that it repeats.
struct StepTime {
    double products = 0, attention = 0, elementwise = 0, optimizer = 0;
    double offload = 0;                              // copies between host and device that nothing hides
    double blocks_forward = 0, blocks_backward = 0;  // the part of the above that communication can hide behind
    double blocks_static = 0;  // matmuls of that part that cuBLASLt divides among the multiprocessors beforehand
    double total() const { return products + attention + elementwise + optimizer + offload; }
};

// `precision`: bf16 or fp8, whatever the run has. In FP8 the linear layers of config.fp8_layers run at the FP8 rate,
// and the kernels that produce their operands quantize them in both layouts, attention's among them; of lm_head only
// the gradients do, and with -forward of all. `slices`: the parts into which the optimizer's work is divided; a rank
// does one of them.
StepTime step_time(const PlannedRun& run, Precision precision, int slices);

// ---- memory --------------------------------------------------------------------------------------------------------

// GPU memory that libraries take in addition to the arenas, and only when they are first used: modules of kernels that
// CUDA and cuBLASLt load, and NCCL's buffers. These are generous estimates, not measured; a run records what was really
// taken (memory_outside).
constexpr size_t kLibraryReserve = size_t{1} << 30;
constexpr size_t kCommunicatorReserve = size_t{1} << 29;
constexpr size_t memory_reserve(int communicators) {
    return kLibraryReserve + kCommunicatorReserve * static_cast<size_t>(communicators);
}
// How many NCCL communicators a rank has: one for the world, one for weights, one for gradients, and one between groups
// if there are several. `shard_ranks`: ranks of a group; 0: all.
int nccl_communicators(int ranks, int shard_ranks);

// Throws Error(no_resources) if `needed` and `reserve` are more than `available`. 0: unknown, so it never throws.
// `may_offload`: the device has other memory than the host, so the message also names --offload.
void check_memory(const MemoryByKind& needed, size_t reserve, size_t available, const std::string& device_name,
                  bool may_offload);
// The same for host memory: `available` is a rank's share of what the machine has free.
void check_host_memory(const MemoryByKind& needed, size_t available);

// How long a run is, and what it costs. `hours` is a prediction, and absent if there is none.
struct RunLength {
    int64_t steps = 0, tokens = 0;
    std::optional<double> hours;
    double gpu_hours(int ranks) const { return hours.value_or(0) * ranks; }
};
std::string describe_length(const RunLength& length, int ranks);
// A picture of the learning rate over the steps of the run: 8 rows of 60 columns.
std::string describe_schedule(const ScheduleConfig& schedule);

// ---- the stages of --zero: what a rank holds, sends and waits for ---------------------------------------------------

// Bytes and calls with which a rank sends to others in a step, as Comm counts them; the mean if ranks differ. Sums of
// single values (loss, norm, amaxes: kilobytes) are left out.
struct Sent {
    struct Kind {
        double calls = 0, bytes = 0;
    };
    Kind weights, gradients;          // among the ranks of a group, which share the slices of a unit
    Kind between_groups;              // gradients between groups, if --shard-within makes several
    Kind optimizer;                   // Muon's directions, among the ranks of a group
    double first = 0;                 // share of the embedding and the first block in all of it
    int group = 1, groups = 1;        // ranks of a group; number of groups
    bool exchanged = false;           // every rank sends gradients to every other, instead of around a ring
    int forwards = 0, backwards = 0;  // passes of a step in which something is sent
    double bytes() const { return weights.bytes + gradients.bytes + between_groups.bytes + optimizer.bytes; }
};
// `element`: bytes per working weight.
Sent sent_in_step(const ShardLayout& layout, int micro_steps, size_t element);

// A rank of a run with this stage, as its Trainer plans it.
struct StagePlan {
    int stage = 0;
    Recompute recompute = Recompute::none;
    std::string refused;  // why such a run is refused; "" if it is not
    MemoryByKind memory;
    size_t reserve = 0;      // for libraries
    size_t shared_copy = 0;  // host memory, if the card shares it
    int slices = 1;          // into which a unit is divided
    Sent sent;
    ProductUses products;  // the matmuls of a micro-step, each with the kinds of layers that need it
    size_t bytes() const { return memory.total() + reserve + shared_copy; }
};

// Model, step, memory and predicted time of a rank.
std::string describe_plan(const PlannedRun& run, const StagePlan& plan);

// Milliseconds of a step: its kernels, and the time that communication costs: the model waits for other ranks, and has
// fewer multiprocessors while NCCL's kernels run.
struct StepPrediction {
    double compute = 0, waits = 0;
    double step() const { return compute + waits; }
};
// Communication hides behind the blocks' compute in the same passes. The embedding and the first block are the
// exception: their weights are needed first, and their gradients leave last.
StepPrediction predict_step(PlannedRun run, const StagePlan& plan);
// Why there is no prediction for this run; "" if there is one.
std::string no_prediction_because(const PlannedRun& run);

// The lowest stage whose step takes at most 1 % longer than the shortest, among those that run and fit.
std::optional<int> recommend_stage(const PlannedRun& run, const std::vector<StagePlan>& stages);

std::string describe_sharding(const PlannedRun& run, const std::vector<StagePlan>& stages);

// ---- --estimate-scaling: the same run on 1 to 1024 GPUs, each with the same batch (weak scaling) --------------------

struct ScalingPoint {
    int gpus = 1;
    double tokens_per_s = 0;
    double efficiency = 1;  // share of the step that is not lost to communication
    StepPrediction step;
    StagePlan plan;
    bool fits = true;
};

// `plan(gpus)` plans one rank of a run on that many GPUs. `run.ranks` does not matter; batch and micro-steps are those
// of every rank. Throws Error(bad_flags) if there is no prediction for the run.
std::vector<ScalingPoint> estimate_scaling(PlannedRun run, const std::function<StagePlan(int)>& plan);

std::string describe_scaling(const PlannedRun& run, const std::vector<ScalingPoint>& points);
std::string scaling_json(const PlannedRun& run,
                         const std::vector<ScalingPoint>& points);  // for scripts/plot_scaling.py

}  // namespace llmc
