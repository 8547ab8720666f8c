// A block of Llama 3 (arXiv 2407.21783): RMS norms, attention with rotary positions and grouped queries, a gated MLP,
// no biases. Its relatives differ by what their tables say: Qwen3 (2505.09388) norms queries and keys, with gains;
// nano, nanochat's plain form of October 2025, norms them and everything else without gains, begins with a norm of the
// embedding, squares a ReLU in place of the gate, and starts with projections of 0.
#pragma once
#include <optional>

#include "llmc/kernels/rope.h"
#include "llmc/model/block.h"
#include "llmc/model/norm.h"

namespace llmc {

ModelTable llama_table(const ModelConfig& config);
ModelTable qwen3_table(const ModelConfig& config);
ModelTable nano_table(const ModelConfig& config);

template <class Real>
class LlamaBlock : public Block<Real> {
public:
    LlamaBlock(ModelContext<Real>& context, int layer);

    static size_t scratch(const ModelConfig& config, int B, int T);

    Real* residual() const override { return residual_; }
    Linear<Real>& last_layer() override { return fc_proj_; }
    void allocated(stream_t stream) override;
    ResidualStream<Real> forward(const ResidualStream<Real>& in, const Pass& pass) override;
    ResidualStream<Real> decode(const ResidualStream<Real>& in, int first, const Pass& pass) override;
    bool keeps_rows() const override { return level_ < Recompute::block; }
    void recompute(const Pass& pass) override;
    Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) override;

private:
    using Place = std::optional<ParameterTable::Place>;

    void forward_to_activation(const ResidualStream<Real>& in, const Pass& pass);
    void make_qkv(const Operand<Real>& normed, int first, const Pass& pass);
    void rotate_back(const Pass& pass);
    Operand<Real> attend(const Pass& pass);
    Operand<Real> activate(const Pass& pass);
    Gradient<Real> activate_backward(const Pass& pass);
    QkGains<const Real> gains() const;
    RopeTable rope() const { return {cos_, sin_, positions_}; }

    const ModelConfig& config_;
    const Recompute level_;
    const KernelSet kernels_;
    const AttentionHeads heads_;
    const bool has_qk_norm_, is_gated_;
    const int layer_, positions_;
    Weights<Real>& weights_;
    Gradients& gradients_;
    Linear<Real> qkv_, attn_proj_, fc_, fc_proj_;
    Norm<Real> ln1_, ln2_;
    const Place query_gain_, key_gain_;  // (HD)

    // Activations. What is not kept until backward, all blocks share. In FP8 alone: nullptr.
    Real* residual_ = nullptr;               // (N, C)   the block's input
    Real* ln1_out_ = nullptr;                // (N, C)
    Real* unrotated_ = nullptr;              // (N, NH + 2 NKV, HD)   before QK-norm and RoPE; with QK-norm alone
    Real* qkv_out_ = nullptr;                // (N, NH + 2 NKV, HD)   what attention reads
    Real* attention_ = nullptr;              // (N, NH HD)
    Real* attention_low_ = nullptr;          // (N, NH HD)   what rounding attention to bf16 lost; none in fp32
    float* lse_ = nullptr;                   // (B, NH, T)
    Real* residual_mid_ = nullptr;           // (N, C)   after attention
    Real* ln2_out_ = nullptr;                // (N, C)
    Real* fc_out_ = nullptr;                 // (N, 2F)  gate and up; or (N, F)
    Real* active_ = nullptr;                 // (N, F)
    Real* branch_ = nullptr;                 // (N, C)   a projection's output; shared
    Real* dbranch_ = nullptr;                // (N, C)   gradient inside a branch, or (N, NH HD) of attention; shared
    Real* dactive_ = nullptr;                // (N, F)   shared
    Real* dhidden_ = nullptr;                // gradient of fc's output or of qkv's; shared
    float* delta_ = nullptr;                 // (B, NH, T); shared
    float *cos_ = nullptr, *sin_ = nullptr;  // (positions, HD / 2); shared

    // Inputs of the linear layers as the last pass has left them.
    Operand<Real> qkv_in_, attn_proj_in_, fc_in_, fc_proj_in_;
};

}  // namespace llmc
