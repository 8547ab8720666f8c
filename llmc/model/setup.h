// Everything that defines a model and its passes, except its weights.
#pragma once
#include <cstddef>

#include "llmc/base/text.h"
#include "llmc/fp8/recipe.h"
#include "llmc/model/config.h"

namespace llmc {

// The number formats of a run: FP8 in some linear layers and BF16 elsewhere, BF16, or FP32.
enum class Precision {
    fp8,
    bf16,
    fp32,
    automatic  // until resolve() has seen the device
};
template <>
inline constexpr WordTable<Precision> kWords<Precision> = {
    {"fp8", Precision::fp8}, {"bf16", Precision::bf16}, {"fp32", Precision::fp32}, {"auto", Precision::automatic}};

template <>
inline constexpr WordTable<Kernels> kWords<Kernels> = {{"auto", Kernels::automatic}, {"portable", Kernels::portable}};

// How much forward keeps for backward. Backward computes the rest again from the same inputs with the same kernels, so
// every level gives the same bits.
enum class Recompute {
    automatic,  // a plan replaces it by the first of the others that fits; a model treats it as `none`
    none,       // keep everything
    gelu,       // recompute the activation's output
    norm,       // ... and the outputs of the block's norms
    block       // keep only a block's input and run its forward again
};
template <>
inline constexpr WordTable<Recompute> kWords<Recompute> = {{"auto", Recompute::automatic},
                                                           {"none", Recompute::none},
                                                           {"gelu", Recompute::gelu},
                                                           {"norm", Recompute::norm},
                                                           {"block", Recompute::block}};

// Logits that exist at a time (logits_chunk()): 8192 rows with GPT-2's vocabulary, 4096 with Llama 3's.
constexpr size_t kLogitsBytes = size_t{1} << 30;

// The part of a TrainerConfig that a Transformer needs.
struct ModelSetup {
    ModelConfig model;
    int batch = 1, seq = 0;  // B sequences of T tokens per micro-batch and rank
    int shortest_piece = 0;  // shortest piece into which training cuts sequences, in tokens; 0: never cut
    Precision precision = Precision::bf16;
    Fp8Config fp8;  // with Precision::fp8
    Recompute recompute = Recompute::gelu;
    bool offload_residuals = false;  // --offload residuals: the blocks' inputs are in host memory until backward
    size_t logits_bytes = kLogitsBytes;
    bool doc_mask = false;  // attention stays within documents (mark_documents())
    int end_token = -1;     // the token that begins every document; -1: unknown
    Kernels kernels = Kernels::automatic;
    double z_loss = 0;          // see LogitShaping
    bool forward_only = false;  // for evaluation and sampling: no memory for a backward pass

    int N() const { return batch * seq; }  // upper limit of a pass
    bool is_fp8() const { return precision == Precision::fp8; }
    Fp8Scaling fp8_scaling() const { return is_fp8() ? scaling_of(fp8.recipe) : Fp8Scaling::tensor; }
};

}  // namespace llmc
