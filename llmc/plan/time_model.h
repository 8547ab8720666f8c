// The time of kernels and of a step on a card, predicted: the one model behind --dry-run, --estimate-scaling and
// `make predict`. Its constants come from measurements of this program on an H100 and from published ones of other
// programs' kernels. A test holds it to measured steps of this program, and to published ones of llm.c and llmq
// (test/plan/time_model.cpp). dev/notes/performance.md has sources and errors.
#pragma once
#include <cstdint>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/variants.h"
#include "llmc/plan/cards.h"
#include "llmc/train/trainer.h"

namespace llmc {

// A run to plan, and the card to plan it for.
struct PlannedRun {
    TrainerConfig config;
    Precision precision = Precision::bf16;
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
    // A product in FP8 with GELU, or with GELU's gradient, in its epilogue.
    double matmul_gelu(double M, double N, double K, bool backward) const;
    // Causal attention in this number of layers, with the kernels that a run with this set has on the card.
    struct Attention {
        double forward, backward;
        double logits = 0;  // attention_max_logits()
    };
    bool runs(const KernelSet& kernels, KernelVariant variant) const {
        return kernels.has(variant) && kernel_variant(variant).runs_on(gpu_.capability);
    }
    Attention attention(double layers, int B, int T, const AttentionHeads& heads, const KernelSet& kernels) const;
    // The time of attention at a rate that counts this many products (2 forward, 5 backward) over half of the square,
    // for `tokens` tokens in sequences of T.
    static double attention_at(double tflops, int products, double tokens, double T, double channels);
    double element_wise(double bytes) const { return bytes / (element_wise_rate() * 1e-3); }
    // AdamW and the gradients' norm. On the card named above they read and wrote 2.97 TB/s at 1558M, 2.8 at 124M.
    double optimizer(double bytes) const { return bytes / (card_.bandwidth_gbs * 1e6); }
    double launches(double count) const { return kLaunch * count; }
    double element_wise_rate() const { return kElementWiseShare * card_.bandwidth_gbs * 1e9; }  // bytes per second
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
    double total() const { return products + attention + elementwise + optimizer + offload; }
};

// `precision`: bf16 or fp8, whatever the run has. In FP8 the linear layers of config.fp8_layers run at the FP8 rate,
// and the kernels that produce their operands quantize them in both layouts, attention's among them; lm_head is as in
// BF16.
// `slices`: the parts into which the optimizer's work is divided; a rank does one of them.
StepTime step_time(const PlannedRun& run, Precision precision, int slices);

}  // namespace llmc
