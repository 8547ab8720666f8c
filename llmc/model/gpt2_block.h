// A block of GPT-2 (Radford et al. 2019): pre-norm, causal attention and an MLP with GELU in its tanh form, biases
// everywhere. Its tensors are in gpt2_table().
#pragma once
#include "llmc/model/decoder_block.h"

namespace llmc {

ModelTable gpt2_table(const ModelConfig& config);

template <class Real>
class Gpt2Block : public DecoderBlock<Real> {
public:
    Gpt2Block(ModelContext<Real>& context, int layer);
    static size_t scratch(const ModelConfig& config, int B, int T);

private:
    using Base = DecoderBlock<Real>;
    using Base::dactive_, Base::dbranch_, Base::dhidden_, Base::fc_, Base::fc_out_, Base::fc_proj_, Base::heads_,
        Base::kernels_, Base::qkv_, Base::qkv_out_;

    void make_qkv(const Operand<Real>& normed, int first, const Pass& pass) override;
    Gradient<Real> attend_backward(const Pass& pass) override;
    Operand<Real> activate(const Pass& pass) override;
    void write_activation(Real* out, const Pass& pass) override;
    Gradient<Real> activate_backward(const Pass& pass) override;
};

}  // namespace llmc
