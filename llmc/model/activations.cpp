#include "llmc/model/activations.h"

#include <algorithm>
#include <type_traits>

#include "llmc/device/formats.cuh"
#include "llmc/kernels/attention_fp8.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/embedding.h"
#include "llmc/kernels/gelu.h"
#include "llmc/kernels/layernorm.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/kernels/quantize.h"

namespace llmc {

int logits_chunk(int N, int padded_vocab, size_t element_bytes) {
    const size_t rows = logits_bytes_limit / (static_cast<size_t>(padded_vocab) * element_bytes) / 128 * 128;
    return static_cast<int>(std::min<size_t>(static_cast<size_t>(N), std::max<size_t>(rows, 128)));
}

Recompute recompute_from_name(const std::string& name) {
    if (name == "none") return Recompute::none;
    if (name == "gelu") return Recompute::gelu;
    if (name == "norm") return Recompute::norm;
    if (name == "block") return Recompute::block;
    throw Error(ExitCode::bad_flags, "--recompute " + name + ": expected none, gelu, norm or block");
}

template <class Real>
Activations<Real>::Activations(const ModelConfig& config, int B, int T, Recompute recompute_,
                               const Fp8Layers* without_bf16)
    : recompute(recompute_), blocks(static_cast<size_t>(config.layers)) {
    const size_t N = static_cast<size_t>(B) * static_cast<size_t>(T);
    const size_t C = static_cast<size_t>(config.channels);
    const size_t NH = static_cast<size_t>(config.heads);
    chunk_rows = logits_chunk(static_cast<int>(N), config.padded_vocab(), sizeof(Real));

    const auto reads = [&](int block, BlockLinear linear) {
        return !without_bf16 || !without_bf16->is_fp8(block, linear);
    };
    const auto any_reads = [&](BlockLinear linear) {
        for (int block = 0; block < config.layers; block++)
            if (reads(block, linear)) return true;
        return false;
    };
    // Plans what a block keeps at this level; the rest goes to `shared_`, once. `reads` says who wants its input here.
    auto plan_block = [&](BlockActivations<Real>& a, bool keep_block, bool keep_norms, bool keep_gelu, auto&& reads) {
        if (keep_norms && reads(BlockLinear::qkv)) arena.plan(&a.ln1, N * C);
        if (keep_norms && reads(BlockLinear::fc)) arena.plan(&a.ln2, N * C);
        if (keep_gelu && reads(BlockLinear::fc_proj)) arena.plan(&a.gelu, N * 4 * C);
        if (!keep_block) return;
        for (float** statistic : {&a.ln1_mean, &a.ln1_rstd, &a.ln2_mean, &a.ln2_rstd}) arena.plan(statistic, N);
        arena.plan(&a.qkv, N * 3 * C);
        arena.plan(&a.attention, N * C);
        if (!std::is_same_v<Real, float>) arena.plan(&a.attention_low, N * C);
        arena.plan(&a.lse, N * NH);
        arena.plan(&a.residual_mid, N * C);
        arena.plan(&a.fc, N * 4 * C);
    };
    const bool keep_block = recompute < Recompute::block;
    const bool keep_norms = recompute < Recompute::norm;
    const bool keep_gelu = recompute < Recompute::gelu;
    for (int l = 0; l < config.layers; l++) {
        BlockActivations<Real>& block = blocks[static_cast<size_t>(l)];
        arena.plan(&block.residual, N * C);
        plan_block(block, keep_block, keep_norms, keep_gelu, [&](BlockLinear linear) { return reads(l, linear); });
    }
    plan_block(shared_, !keep_block, !keep_norms, !keep_gelu, any_reads);

    arena.plan(&residual_final, N * C);
    arena.plan(&lnf, N * C);
    arena.plan(&lnf_mean, N);
    arena.plan(&lnf_rstd, N);
    arena.plan(&branch, N * C);
    arena.plan(&losses, N);
    arena.plan(&dresidual, N * C);
    arena.plan(&dbranch, N * C);
    arena.plan(&dhidden, N * 4 * C);
    arena.plan(&delta, N * NH);

    const int n = static_cast<int>(N), c = config.channels;
    workspace.plan(&logits, static_cast<size_t>(chunk_rows) * static_cast<size_t>(config.padded_vocab()));
    workspace.plan(&scratch, std::max({layernorm_backward_scratch(n, c), gelu_backward_scratch(n, 4 * c),
                                       bias_gradient_scratch(n, 3 * c), quantize_scratch(n, 4 * c),
                                       layernorm_backward_fp8_scratch(n, c),
                                       attention_backward_fp8_scratch(B, T, config.heads, config.head_dim())}));
    workspace.plan(&tokens, N);
    workspace.plan(&targets, N);
    workspace.plan(&sorted, token_sort_size(n));
}

template <class Real>
void Activations<Real>::allocate() {
    arena.allocate();
    workspace.allocate();
    for (BlockActivations<Real>& block : blocks) {
        auto share = [](auto*& mine, auto* shared) {
            if (!mine) mine = shared;
        };
        share(block.ln1, shared_.ln1);
        share(block.ln1_mean, shared_.ln1_mean);
        share(block.ln1_rstd, shared_.ln1_rstd);
        share(block.qkv, shared_.qkv);
        share(block.attention, shared_.attention);
        share(block.attention_low, shared_.attention_low);
        share(block.lse, shared_.lse);
        share(block.residual_mid, shared_.residual_mid);
        share(block.ln2, shared_.ln2);
        share(block.ln2_mean, shared_.ln2_mean);
        share(block.ln2_rstd, shared_.ln2_rstd);
        share(block.fc, shared_.fc);
        share(block.gelu, shared_.gelu);
    }
}

template struct Activations<float>;
template struct Activations<bf16>;

}  // namespace llmc
