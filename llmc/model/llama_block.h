// A block of Llama 3 (arXiv 2407.21783): RMS norms, attention with rotary positions and grouped queries, a gated MLP,
// no biases. Its relatives differ by what their tables say: Qwen3 (2505.09388) norms queries and keys, with gains;
// nano, nanochat's plain form of October 2025, norms them and everything else without gains, begins with a norm of the
// embedding, squares a ReLU in place of the gate, and starts with projections of 0.
#pragma once
#include <optional>

#include "llmc/kernels/rope.h"
#include "llmc/model/decoder_block.h"

namespace llmc {

ModelTable llama_table(const ModelConfig& config);
ModelTable qwen3_table(const ModelConfig& config);
ModelTable nano_table(const ModelConfig& config);

template <class Real>
class LlamaBlock : public DecoderBlock<Real> {
public:
    LlamaBlock(ModelContext<Real>& context, int layer);
    static size_t scratch(const ModelConfig& config, int B, int T);

    void allocated(stream_t stream) override;

private:
    using Base = DecoderBlock<Real>;
    using Base::config_, Base::dactive_, Base::dhidden_, Base::fc_, Base::fc_out_, Base::fc_proj_, Base::heads_,
        Base::kernels_, Base::qkv_, Base::qkv_out_;
    using Place = std::optional<ParameterTable::Place>;

    void make_qkv(const Operand<Real>& normed, int first, const Pass& pass) override;
    Gradient<Real> attend_backward(const Pass& pass) override;
    Operand<Real> activate(const Pass& pass) override;
    void write_activation(Real* out, const Pass& pass) override;
    Gradient<Real> activate_backward(const Pass& pass) override;
    void rotate_back(const Pass& pass);
    void write_activation_gradient(const Pass& pass);
    QkGains<const Real> gains() const;
    RopeTable rope() const { return {cos_, sin_, positions_}; }

    const bool has_qk_norm_, is_gated_;
    const int layer_, positions_;
    Weights<Real>& weights_;
    Gradients& gradients_;
    const Place query_gain_, key_gain_;  // (HD)

    Real* unrotated_ = nullptr;              // (N, NH + 2 NKV, HD)   before QK-norm and RoPE; with QK-norm alone
    float *cos_ = nullptr, *sin_ = nullptr;  // (positions, HD / 2); shared
};

}  // namespace llmc
