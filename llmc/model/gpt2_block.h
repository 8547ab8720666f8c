// A block of GPT-2 (Radford et al. 2019): pre-norm, causal attention and an MLP with GELU in its tanh form, biases
// everywhere. Its tensors are in gpt2_table() below.
#pragma once
#include "llmc/model/norm.h"

namespace llmc {

// The residual stream between two blocks: residual + branch, where branch is the last projection's output, which the
// next norm adds. Without a branch, residual is all of it.
template <class Real>
struct ResidualStream {
    const Real* residual;  // (N, C)
    const Real* branch;    // (N, C)
};

template <class Real>
class Gpt2Block {
public:
    Gpt2Block(ModelContext<Real>& context, int layer);

    static ModelTable table(const ModelConfig& config) { return gpt2_table(config); }
    // Floats that a pass needs for partial sums.
    static size_t scratch(const ModelConfig& config, int B, int T);

    // Where the stream goes that this block starts from: the norm before it adds it up here. (N, C)
    Real* residual() const { return residual_; }
    // The layer whose output is the branch that forward returns.
    Linear<Real>& last_layer() { return fc_proj_; }
    const Linear<Real>& last_layer() const { return fc_proj_; }

    ResidualStream<Real> forward(const ResidualStream<Real>& in, const Pass& pass);
    // Forward of the rows from `first` on, pass.N() of them, of one sequence whose earlier rows have come this way and
    // are still here; for inference alone. Both streams begin at the sequence's first row.
    ResidualStream<Real> decode(const ResidualStream<Real>& in, int first, const Pass& pass);
    // Whether rows are still here after other blocks have run.
    bool keeps_rows() const { return level_ < Recompute::block; }
    // What forward has not kept, made again in front of backward.
    void recompute(const Pass& pass);
    // From the gradient of the stream behind the block to that in front of it, in place; `before`: the layer that was
    // last added there (nullptr: none).
    Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass);

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
