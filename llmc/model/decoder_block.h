// What blocks of GPT-2 and its descendants have in common: a norm, attention and a projection; a norm, an MLP and a
// projection; each pair's output is added to the stream by whoever comes next. Between them an architecture says how
// queries, keys and values are made, what the activation is, and how both go back.
#pragma once
#include "llmc/kernels/attention.h"
#include "llmc/model/block.h"
#include "llmc/model/norm.h"

namespace llmc {

template <class Real>
class DecoderBlock : public Block<Real> {
public:
    Real* residual() const final { return residual_; }
    Linear<Real>& last_layer() final { return fc_proj_; }
    ResidualStream<Real> forward(const ResidualStream<Real>& in, const Pass& pass) final;
    ResidualStream<Real> decode(const ResidualStream<Real>& in, int first, const Pass& pass) final;
    bool keeps_rows() const final { return level_ < Recompute::block; }
    void recompute(const Pass& pass) final;
    Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) final;

protected:
    // activation_in_place: dactive is dhidden.
    DecoderBlock(ModelContext<Real>& context, int layer, const AttentionHeads& heads, bool activation_in_place);

    // From ln1's output to qkv_out_, of the rows from `first` on. The cache of keys and values is qkv_out_.
    virtual void make_qkv(const Operand<Real>& normed, int first, const Pass& pass) = 0;
    // From the gradient of attention's output, in dbranch_, to that of qkv's.
    virtual Gradient<Real> attend_backward(const Pass& pass) = 0;
    // From fc_out_ to fc_proj's input.
    virtual Operand<Real> activate(const Pass& pass) = 0;
    virtual void write_activation(Real* out, const Pass& pass) = 0;  // its value
    // From the gradient of the activation's output, in dactive_, to that of fc's.
    virtual Gradient<Real> activate_backward(const Pass& pass) = 0;

    // Attention casts its results itself where a sequence fills whole pieces of a transposed row; else they go through
    // BF16.
    bool attention_casts(KernelVariant variant, const Pass& pass) const;
    // The gradient of qkv_out_ in dhidden_.
    void attention_backward_to_hidden(const Pass& pass);

    const ModelConfig& config_;
    const Recompute level_;
    const KernelSet kernels_;
    const AttentionHeads heads_;
    Linear<Real> qkv_, attn_proj_, fc_, fc_proj_;
    Norm<Real> ln1_, ln2_;

    // Activations. What is not kept until backward, all blocks share. In FP8 alone: nullptr. F: fc_proj's inputs.
    Real* residual_ = nullptr;       // (N, C)   the block's input
    Real* ln1_out_ = nullptr;        // (N, C)
    Real* qkv_out_ = nullptr;        // (N, NH + 2 NKV, HD)   what attention reads
    Real* attention_ = nullptr;      // (N, NH HD)
    Real* attention_low_ = nullptr;  // (N, NH HD)   what rounding attention to bf16 lost; none in fp32
    float* lse_ = nullptr;           // (B, NH, T)
    Real* residual_mid_ = nullptr;   // (N, C)   after attention
    Real* ln2_out_ = nullptr;        // (N, C)
    Real* fc_out_ = nullptr;         // (N, fc's outputs)   before the activation
    Real* active_ = nullptr;         // (N, F)
    Real* branch_ = nullptr;         // (N, C)   a projection's output; shared
    Real* dbranch_ = nullptr;        // (N, C)   gradient inside a branch, or (N, NH HD) of attention; shared
    Real* dactive_ = nullptr;        // (N, F)   shared
    Real* dhidden_ = nullptr;        // gradient of fc's output or of qkv's; shared
    float* delta_ = nullptr;         // (B, NH, T); shared

private:
    void forward_to_activation(const ResidualStream<Real>& in, const Pass& pass);
    Operand<Real> attend(const Pass& pass);

    // Inputs of the linear layers as the last pass has left them.
    Operand<Real> qkv_in_, attn_proj_in_, fc_in_, fc_proj_in_;
};

}  // namespace llmc
