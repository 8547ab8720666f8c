// The activations of one micro-batch in one arena: what forward leaves for backward, and what both use in passing.
// How much forward leaves is the recompute level: what is not kept is computed again in backward, from the same inputs
// by the same kernels, so every level gives the same bits.
#pragma once
#include <string>
#include <vector>

#include "llmc/fp8/recipe.h"
#include "llmc/model/config.h"
#include "llmc/shard/arena.h"

namespace llmc {

enum class Recompute {
    none,   // keep everything
    gelu,   // recompute the GELU's output
    norm,   // ... and both norms' outputs
    block,  // keep a block's input alone and run its forward again
};
Recompute recompute_from_name(const std::string& name);

// Rows of logits that exist at once: as many as fit into logits_bytes_limit, in multiples of 128 so that the products
// stay efficient.
int logits_chunk(int N, int padded_vocab, size_t element_bytes);
inline size_t logits_bytes_limit = size_t{512} << 20;  // tests lower it

// Of one block, for N = B * T tokens. Pointers that are not kept per block point into buffers that all blocks share.
template <class Real>
struct BlockActivations {
    Real* residual = nullptr;       // (N, C)   the block's input
    Real* ln1 = nullptr;            // (N, C)   nullptr, as ln2 and gelu, where it exists in FP8 alone
    float* ln1_mean = nullptr;      // (N)
    float* ln1_rstd = nullptr;      // (N)
    Real* qkv = nullptr;            // (N, 3, NH, HD)
    Real* attention = nullptr;      // (N, C)
    Real* attention_low = nullptr;  // (N, C)   what rounding attention to bf16 lost; none in fp32
    float* lse = nullptr;           // (B, NH, T)
    Real* residual_mid = nullptr;   // (N, C)   after attention
    Real* ln2 = nullptr;            // (N, C)
    float* ln2_mean = nullptr;      // (N)
    float* ln2_rstd = nullptr;      // (N)
    Real* fc = nullptr;             // (N, 4C)  before GELU
    Real* gelu = nullptr;           // (N, 4C)
};

template <class Real>
struct Activations {
    // without_bf16: layers whose inputs (ln1, ln2, gelu) never exist in this type; nullptr: none.
    Activations(const ModelConfig& config, int B, int T, Recompute recompute, const Fp8Layers* without_bf16 = nullptr);
    void allocate();

    Arena arena{MemoryKind::activations};
    Arena workspace{MemoryKind::workspace};
    Recompute recompute;
    int chunk_rows;  // rows of logits that exist at once

    std::vector<BlockActivations<Real>> blocks;
    Real* residual_final;  // (N, C)
    Real* lnf;             // (N, C)
    float* lnf_mean;       // (N)
    float* lnf_rstd;       // (N)
    Real* branch;          // (N, C)  a projection's output, before the residual addition of the next norm
    float* losses;         // (N)

    // Backward.
    Real* dresidual;  // (N, C)   gradient of the residual stream
    Real* dbranch;    // (N, C)   gradient inside a branch
    Real* dhidden;    // (N, 4C)  gradient of fc; its first 3C columns' worth also hold that of qkv
    float* delta;     // (B, NH, T)

    // Workspace.
    Real* logits;    // (chunk_rows, Vp)
    float* scratch;  // partial sums of bias and norm gradients
    int* tokens;     // (N)
    int* targets;    // (N)
    int* sorted;     // token_sort_size(N)

private:
    BlockActivations<Real> shared_;
};

}  // namespace llmc
