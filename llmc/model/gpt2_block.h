// A block of GPT-2 (Radford et al. 2019): pre-norm, causal attention and an MLP with GELU in its tanh form, biases
// everywhere. Its tensors are in gpt2_table().
#pragma once
#include "llmc/kernels/attention_heads.h"
#include "llmc/model/block.h"
#include "llmc/model/norm.h"

namespace llmc {

ModelTable gpt2_table(const ModelConfig& config);

template <class Real>
class Gpt2Block : public Block<Real> {
public:
    Gpt2Block(ModelContext<Real>& context, int layer);

    static size_t scratch(const ModelConfig& config, int B, int T);

    Real* residual() const override { return residual_; }
    Linear<Real>& last_layer() override { return fc_proj_; }
    ResidualStream<Real> forward(const ResidualStream<Real>& in, const Pass& pass) override;
    ResidualStream<Real> decode(const ResidualStream<Real>& in, int first, const Pass& pass) override;
    bool keeps_rows() const override { return level_ < Recompute::block; }
    void recompute(const Pass& pass) override;
    Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) override;

private:
    void forward_to_gelu(const ResidualStream<Real>& in, const Pass& pass);
    Operand<Real> attend(const Pass& pass);
    Gradient<Real> attend_backward(const Pass& pass);
    Operand<Real> activate(const Pass& pass);
    Gradient<Real> activate_backward(const Pass& pass);
    bool attention_casts(KernelVariant variant, const Pass& pass) const;

    const ModelConfig& config_;
    const Recompute level_;
    const KernelSet kernels_;
    const AttentionHeads heads_;
    Linear<Real> qkv_, attn_proj_, fc_, fc_proj_;
    Norm<Real> ln1_, ln2_;

    // Activations. What is not kept until backward, all blocks share. In FP8 alone: nullptr.
    Real* residual_ = nullptr;       // (N, C)   the block's input
    Real* ln1_out_ = nullptr;        // (N, C)
    Real* qkv_out_ = nullptr;        // (N, 3, NH, HD)
    Real* attention_ = nullptr;      // (N, C)
    Real* attention_low_ = nullptr;  // (N, C)   what rounding attention to bf16 lost; none in fp32
    float* lse_ = nullptr;           // (B, NH, T)
    Real* residual_mid_ = nullptr;   // (N, C)   after attention
    Real* ln2_out_ = nullptr;        // (N, C)
    Real* fc_out_ = nullptr;         // (N, 4C)  before GELU
    Real* gelu_ = nullptr;           // (N, 4C)
    Real* branch_ = nullptr;         // (N, C)   a projection's output; shared
    Real* dbranch_ = nullptr;        // (N, C)   gradient inside a branch; shared
    Real* dhidden_ = nullptr;        // (N, 4C)  gradient of fc's output, or (N, 3C) of qkv's; shared
    float* delta_ = nullptr;         // (B, NH, T); shared

    // Inputs of the linear layers as the last pass has left them.
    Operand<Real> qkv_in_, attn_proj_in_, fc_in_, fc_proj_in_;
};

}  // namespace llmc
