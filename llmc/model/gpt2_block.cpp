#include "llmc/model/gpt2_block.h"

#include <algorithm>
#include <type_traits>

#include "llmc/kernels/attention_decode.h"
#include "llmc/kernels/attention_fp8.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/gelu.h"
#include "llmc/kernels/gelu_fp8.h"
#include "llmc/kernels/layernorm.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/kernels/quantize.h"

namespace llmc {

ModelTable gpt2_table(const ModelConfig& config) {
    const int C = config.channels;
    ModelTable table;
    table.embedding = {
        {"wte", "transformer.wte.weight", config.vocab, C, Init::normal, config.padded_vocab()},
        {"wpe", "transformer.wpe.weight", config.context, C, Init::normal},
    };
    table.block = {
        {"ln1.weight", "ln_1.weight", C, 0, Init::ones},
        {"ln1.bias", "ln_1.bias", C, 0, Init::zeros},
        {"qkv.weight", "attn.c_attn.weight", 3 * C, C, Init::normal, 0, {}, -1, {C, C, C}},
        {"qkv.bias", "attn.c_attn.bias", 3 * C, 0, Init::zeros},
        {"attn_proj.weight", "attn.c_proj.weight", C, C, Init::residual},
        {"attn_proj.bias", "attn.c_proj.bias", C, 0, Init::zeros},
        {"ln2.weight", "ln_2.weight", C, 0, Init::ones},
        {"ln2.bias", "ln_2.bias", C, 0, Init::zeros},
        {"fc.weight", "mlp.c_fc.weight", 4 * C, C, Init::normal},
        {"fc.bias", "mlp.c_fc.bias", 4 * C, 0, Init::zeros},
        {"fc_proj.weight", "mlp.c_proj.weight", C, 4 * C, Init::residual},
        {"fc_proj.bias", "mlp.c_proj.bias", C, 0, Init::zeros},
    };
    table.final = {
        {"lnf.weight", "transformer.ln_f.weight", C, 0, Init::ones},
        {"lnf.bias", "transformer.ln_f.bias", C, 0, Init::zeros},
    };
    return table;
}

template <class Real>
Gpt2Block<Real>::Gpt2Block(ModelContext<Real>& c, int layer)
    : config_(c.config),
      level_(c.recompute),
      kernels_(c.kernels),
      heads_(AttentionHeads::multi_head(c.config.heads, c.config.head_dim())),
      qkv_(c.linear, block_prefix(layer) + "qkv", c.B * c.T,
           {.kind = "qkv",
            .recomputed = c.recompute >= Recompute::norm,
            .input_from_values = !c.kernels.has(KernelVariant::layernorm_fp8)}),
      attn_proj_(c.linear, block_prefix(layer) + "attn_proj", c.B * c.T,
                 {.kind = "attn_proj",
                  .recomputed = c.recompute >= Recompute::block,
                  .gradient_from_norm = c.kernels.has(KernelVariant::layernorm_backward_fp8)}),
      fc_(c.linear, block_prefix(layer) + "fc", c.B * c.T,
          {.kind = "fc",
           .recomputed = c.recompute >= Recompute::norm,
           .input_from_values = !c.kernels.has(KernelVariant::layernorm_fp8)}),
      fc_proj_(c.linear, block_prefix(layer) + "fc_proj", c.B * c.T,
               {.kind = "fc_proj",
                .recomputed = c.recompute >= Recompute::gelu,
                .input_from_values = !c.kernels.has(KernelVariant::gelu_fp8),
                .gradient_from_norm = c.kernels.has(KernelVariant::layernorm_backward_fp8)}),
      ln1_(c, block_prefix(layer) + "ln1", c.recompute < Recompute::block),
      ln2_(c, block_prefix(layer) + "ln2", c.recompute < Recompute::block) {
    const size_t N = c.N(), C = c.C(), heads = static_cast<size_t>(config_.heads);
    const bool keeps = level_ < Recompute::block;
    c.activations.plan(&residual_, N * C);
    if (qkv_.reads_values()) c.plan(level_ < Recompute::norm, "ln1", &ln1_out_, N * C);
    c.plan(keeps, "qkv", &qkv_out_, N * 3 * C);
    c.plan(keeps, "attention", &attention_, N * C);
    if (!std::is_same_v<Real, float>) c.plan(keeps, "attention low", &attention_low_, N * C);
    c.plan(keeps, "lse", &lse_, N * heads);
    c.plan(keeps, "residual mid", &residual_mid_, N * C);
    if (fc_.reads_values()) c.plan(level_ < Recompute::norm, "ln2", &ln2_out_, N * C);
    c.plan(keeps, "fc", &fc_out_, N * 4 * C);
    if (fc_proj_.reads_values()) c.plan(level_ < Recompute::gelu, "gelu", &gelu_, N * 4 * C);
    c.plan(false, "branch", &branch_, N * C);
    c.plan(false, "dbranch", &dbranch_, N * C);
    c.plan(false, "dhidden", &dhidden_, N * 4 * C);
    c.plan(false, "delta", &delta_, N * heads);
}

template <class Real>
size_t Gpt2Block<Real>::scratch(const ModelConfig& config, int B, int T) {
    const int N = B * T, C = config.channels;
    return std::max(
        {layernorm_backward_scratch(N, C), gelu_backward_scratch(N, 4 * C), bias_gradient_scratch(N, 3 * C),
         quantize_scratch(N, 4 * C), layernorm_backward_fp8_scratch(N, C),
         attention_backward_fp8_scratch(B, T, AttentionHeads::multi_head(config.heads, config.head_dim()))});
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <class Real>
ResidualStream<Real> Gpt2Block<Real>::forward(const ResidualStream<Real>& in, const Pass& pass) {
    forward_to_gelu(in, pass);
    fc_proj_.forward(branch_, fc_proj_in_, pass);
    return {residual_mid_, branch_};
}

template <class Real>
void Gpt2Block<Real>::forward_to_gelu(const ResidualStream<Real>& in, const Pass& pass) {
    qkv_in_ = ln1_.forward(qkv_, ln1_out_, residual_, in.residual, in.branch, pass);
    qkv_.forward(qkv_out_, qkv_in_, pass);
    attn_proj_in_ = attend(pass);
    attn_proj_.forward(branch_, attn_proj_in_, pass);
    fc_in_ = ln2_.forward(fc_, ln2_out_, residual_mid_, residual_, branch_, pass);
    fc_.forward(fc_out_, fc_in_, pass);
    fc_proj_in_ = activate(pass);
}

// The cache of keys and values is qkv's output itself.
template <class Real>
ResidualStream<Real> Gpt2Block<Real>::decode(const ResidualStream<Real>& in, int first, const Pass& pass) {
    const size_t begin = static_cast<size_t>(first) * static_cast<size_t>(config_.channels);
    Real *const residual = residual_ + begin, *const mid = residual_mid_ + begin, *const branch = branch_ + begin;
    const Real* const in_branch = in.branch ? in.branch + begin : nullptr;
    const Operand<Real> normed = ln1_.forward(qkv_, ln1_out_, residual, in.residual + begin, in_branch, pass);
    qkv_.forward(qkv_out_ + 3 * begin, normed, pass);
    attention_decode<Real>(attention_, attention_low_, qkv_out_, first, pass.N(), heads_, pass.stream);
    attn_proj_.forward(branch, attn_proj_.input(attention_, attention_low_, pass), pass);
    fc_.forward(fc_out_, ln2_.forward(fc_, ln2_out_, mid, residual, branch, pass), pass);
    fc_proj_.forward(branch, activate(pass), pass);
    return {residual_mid_, branch_};
}

template <class Real>
void Gpt2Block<Real>::recompute(const Pass& pass) {
    if (level_ == Recompute::block) return forward_to_gelu({residual_, nullptr}, pass);
    if (level_ >= Recompute::norm) {
        qkv_in_ = ln1_.forward(qkv_, ln1_out_, nullptr, residual_, nullptr, pass);
        fc_in_ = ln2_.forward(fc_, ln2_out_, nullptr, residual_mid_, nullptr, pass);
    }
    if (level_ >= Recompute::gelu) fc_proj_in_ = activate(pass);
}

// Attention casts its results itself where a sequence fills whole pieces of a transposed row; else they go through
// BF16.
template <class Real>
bool Gpt2Block<Real>::attention_casts(KernelVariant variant, const Pass& pass) const {
    return kernels_.has(variant) && pass.T % kQuantizedAttentionTokens == 0;
}

// Attention, for attn_proj. Backward wants the output too, unrounded.
template <class Real>
Operand<Real> Gpt2Block<Real>::attend(const Pass& pass) {
    if constexpr (kCanBeFp8<Real>)
        if (attn_proj_.casts_at_once(pass) && attention_casts(KernelVariant::attention_fp8, pass)) {
            const bool backward_follows =
                pass.kind == PassKind::recompute || (pass.kind == PassKind::training && level_ < Recompute::block);
            Real* const out = backward_follows ? attention_ : nullptr;
            Real* const low = backward_follows ? attention_low_ : nullptr;
            return attn_proj_.cast_input(pass, [&](const auto& codes, QuantizePass cast) {
                attention_forward_fp8(codes, out, low, lse_, qkv_out_, pass.B, pass.T, heads_, cast, pass.stream);
            });
        }
    attention_forward<Real>(attention_, attention_low_, lse_, qkv_out_, pass.B, pass.T, heads_, pass.stream);
    return attn_proj_.input(attention_, attention_low_, pass);
}

template <class Real>
Operand<Real> Gpt2Block<Real>::activate(const Pass& pass) {
    const int N = pass.N(), OC = fc_.outputs();
    return fc_proj_.input(
        gelu_, pass,
        [&](Real* out) { gelu_forward(out, fc_out_, static_cast<size_t>(N) * static_cast<size_t>(OC), pass.stream); },
        [&](const auto& codes, QuantizePass cast) { gelu_forward_fp8(codes, fc_out_, N, OC, cast, pass.stream); });
}

// ---- backward ------------------------------------------------------------------------------------------------------

template <class Real>
Gradient<Real> Gpt2Block<Real>::backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) {
    Real* const dresidual = dstream.value;  // (N, C)

    // The MLP's branch.
    fc_proj_.backward(dhidden_, dstream, fc_proj_in_, pass);
    const Gradient<Real> dfc = activate_backward(pass);  // (N, 4C)
    fc_.backward(dbranch_, dfc, fc_in_, pass);
    const Gradient<Real> dmid = ln2_.backward(dresidual, dresidual, dbranch_, residual_mid_, &attn_proj_, pass);

    // Attention's branch.
    attn_proj_.backward(dbranch_, dmid, attn_proj_in_, pass);
    const Gradient<Real> dqkv = attend_backward(pass);  // (N, 3C)
    qkv_.backward(dbranch_, dqkv, qkv_in_, pass);
    return ln1_.backward(dresidual, dresidual, dbranch_, residual_, before, pass);
}

// From the gradient of attention's output, in dbranch_.
template <class Real>
Gradient<Real> Gpt2Block<Real>::attend_backward(const Pass& pass) {
    if constexpr (kCanBeFp8<Real>)
        if (qkv_.casts_at_once(pass) && attention_casts(KernelVariant::attention_backward_fp8, pass))
            return qkv_.cast_gradient(pass, [&](const auto& codes, QuantizePass cast) {
                attention_backward_fp8(codes, qkv_.dbias(), pass.scratch, delta_, dbranch_, qkv_out_, attention_,
                                       attention_low_, lse_, pass.B, pass.T, heads_, pass.accumulate, cast,
                                       pass.stream);
            });
    attention_backward<Real>(dhidden_, delta_, dbranch_, qkv_out_, attention_, attention_low_, lse_, pass.B, pass.T,
                             heads_, pass.stream);
    return {dhidden_};
}

// From the gradient of GELU's output, in dhidden_.
template <class Real>
Gradient<Real> Gpt2Block<Real>::activate_backward(const Pass& pass) {
    const int N = pass.N(), OC = fc_.outputs();
    if constexpr (kCanBeFp8<Real>)
        if (kernels_.has(KernelVariant::gelu_backward_fp8) && fc_.casts_gradients())
            return fc_.cast_gradient(pass, [&](const auto& codes, QuantizePass cast) {
                gelu_backward_fp8(codes, fc_.dbias(), pass.scratch, dhidden_, fc_out_, N, OC, pass.accumulate, cast,
                                  pass.stream);
            });
    gelu_backward<Real>(dhidden_, fc_.dbias(), pass.scratch, dhidden_, fc_out_, N, OC, pass.accumulate, pass.stream);
    return {dhidden_, Gradient<Real>::Codes::none, Gradient<Real>::Bias::done};
}

template class Gpt2Block<float>;
template class Gpt2Block<bf16>;

}  // namespace llmc
