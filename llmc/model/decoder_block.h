// The block of GPT-2 and its descendants: norm, attention, projection; norm, MLP, projection. Each projection adds its
// output to the stream in its matmul. Derived classes make queries, keys and values, and take their gradient back.
#pragma once
#include "llmc/kernels/activation.h"
#include "llmc/kernels/attention.h"
#include "llmc/linear/gelu_products.h"
#include "llmc/model/block.h"

namespace llmc {

template <class Real>
class DecoderBlock : public Block<Real> {
public:
    Real* residual() const final { return residual_; }
    Linear<Real>& last_layer() final { return fc_proj_; }
    void forward(Real* out, const Pass& pass) final;
    void decode(Real* out, int first, const Pass& pass) final;
    bool keeps_rows() const final { return setup_.recompute < Recompute::block; }
    void recompute(const Pass& pass) final;
    Gradient<Real> backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) final;

protected:
    // activation_in_place: dactive and dhidden share memory.
    DecoderBlock(ModelContext<Real>& context, int layer, bool activation_in_place);

    // Computes rows of qkv_out_, from row `first` on, from ln1's output. qkv_out_ is also the cache of keys and values.
    virtual void make_qkv(const Operand<Real>& normed, int first, const Pass& pass) = 0;
    // In: gradient of attention's output, in dbranch_. Returns the gradient of qkv's output.
    virtual Gradient<Real> attend_backward(const Pass& pass) = 0;

    // True if attention can cast its results to FP8 itself. A sequence must fill whole pieces of a transposed row;
    // otherwise the results go through BF16.
    static bool attention_casts(const Pass& pass) { return pass.T % kQuantizedAttentionTokens == 0; }
    // Writes the gradient of qkv_out_ to dhidden_.
    void attention_backward_to_hidden(const Pass& pass) {
        attention_backward<Real>(dhidden_, delta_, dbranch_, qkv_out_, attention_, attention_low_, lse_, pass.B, pass.T,
                                 heads_, pass.tickets, pass.stream, pass.documents);
    }

    const ModelSetup& setup_;
    const int layer_;
    const AttentionHeads heads_;
    const Activation activation_;
    Linear<Real> qkv_, attn_proj_, fc_, fc_proj_;
    GeluProducts<Real> gelu_products_;
    Norm<Real> ln1_, ln2_;

    // Activations. All blocks share those that are not kept until backward. F: number of fc_proj's inputs. Outputs of
    // norms and of the activation are in memory of the layers that read them.
    Real* residual_ = nullptr;       // (N, C)   the block's input
    Real* qkv_out_ = nullptr;        // (N, NH + 2 NKV, HD)   input of attention
    Real* attention_ = nullptr;      // (N, NH HD)
    Real* attention_low_ = nullptr;  // (N, NH HD)   attention's rounding errors to bf16; nullptr in fp32
    float* lse_ = nullptr;           // (B, NH, T)   log of the sum of a row's exp(score)
    Real* residual_mid_ = nullptr;   // (N, C)   after attention
    Real* fc_out_ = nullptr;         // (N, fc's outputs)   before the activation
    Real* dbranch_ = nullptr;        // (N, C)   gradient inside a branch, or (N, NH HD) of attention; shared
    Real* dactive_ = nullptr;        // (N, F)   shared
    // (N, fc's outputs) or (N, qkv's)   gradient of that output; or row codes from a product with GELU; shared
    Real* dhidden_ = nullptr;
    float* delta_ = nullptr;  // (B, NH, T)   see attention_backward(); shared

private:
    void forward_to_activation(const Pass& pass);
    void measure_logits(const Pass& pass) {
        if (!pass.max_logits || pass.kind != PassKind::training) return;
        attention_max_logits<Real>(pass.max_logits + layer_ * heads_.NH, qkv_out_, pass.B, pass.T, heads_, pass.stream,
                                   pass.documents);
    }
    Operand<Real> attend(const Pass& pass);
    // From fc_in_.
    Operand<Real> fc_and_activate(const Pass& pass) {
        if (gelu_products_.fit_forward(pass)) return gelu_products_.forward(fc_out_, dhidden_, fc_in_, pass);
        fc_.forward(fc_out_, fc_in_, pass);
        return activate(pass);
    }
    Operand<Real> activate(const Pass& pass);  // fc_proj's input from fc_out_, as codes or values
    // fc_proj's backward, then the activation's. Returns the gradient of fc's output.
    Gradient<Real> fc_proj_backward(const Gradient<Real>& dstream, const Pass& pass);
    // In: gradient of the activation's output, in dactive_. Returns the gradient of fc's output.
    Gradient<Real> activate_backward(const Pass& pass);

    // Inputs of the linear layers from the last pass.
    Operand<Real> qkv_in_, attn_proj_in_, fc_in_, fc_proj_in_;
};

}  // namespace llmc
