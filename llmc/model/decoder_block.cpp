// Forward and backward of a decoder block, as lists of its layers. See decoder_block.h.
#include "llmc/model/decoder_block.h"

#include <algorithm>
#include <type_traits>

namespace llmc {

// Setup of a layer that reads a norm's output.
template <class Real>
static LinearSetup reads_norm(const ModelContext<Real>& c, const char* kind) {
    return {.kind = kind,
            .recomputed = c.setup.recompute >= Recompute::norm,
            .runs_again = c.setup.recompute == Recompute::block};
}

template <class Real>
DecoderBlock<Real>::DecoderBlock(ModelContext<Real>& c, int layer, bool activation_in_place)
    : setup_(c.setup),
      layer_(layer),
      heads_(c.setup.model.attention_heads(layer, c.setup.kernels)),
      activation_(c.setup.model.table().activation),
      qkv_(c.linear, block_prefix(layer) + "qkv", setup_.N(), reads_norm(c, "qkv")),
      attn_proj_(c.linear, block_prefix(layer) + "attn_proj", setup_.N(),
                 {.kind = "attn_proj",
                  .recomputed = setup_.recompute == Recompute::block,
                  .runs_again = setup_.recompute == Recompute::block,
                  .input_in_memory = true,
                  .has_addend = true}),
      fc_(c.linear, block_prefix(layer) + "fc", setup_.N(), reads_norm(c, "fc")),
      fc_proj_(c.linear, block_prefix(layer) + "fc_proj", setup_.N(),
               {.kind = "fc_proj", .recomputed = setup_.recompute >= Recompute::gelu, .has_addend = true}),
      gelu_products_(fc_, fc_proj_, setup_.kernels == Kernels::automatic && activation_ == Activation::gelu),
      ln1_(c, block_prefix(layer) + "ln1", keeps_rows()),
      ln2_(c, block_prefix(layer) + "ln2", keeps_rows()) {
    const size_t N = c.N(), C = c.C(), rows_of_lse = N * heads_.NH;
    const size_t qkv = qkv_.shape().OC, width = heads_.width();
    const size_t hidden = fc_.shape().OC, F = fc_proj_.shape().C;
    const bool keeps = keeps_rows(), trains = !setup_.forward_only;
    const std::string buffer = fmt::format("residual {}", static_cast<size_t>(layer) % OffloadedResiduals::kBuffers);
    c.plan(trains && !setup_.offload_residuals, buffer.c_str(), &residual_, N * C);
    c.plan(keeps, "qkv", &qkv_out_, N * qkv);
    c.plan(keeps, "attention", &attention_, N * width);
    if (!std::is_same_v<Real, float>) c.plan(keeps, "attention low", &attention_low_, N * width);
    c.plan(keeps, "lse", &lse_, rows_of_lse);
    c.plan(keeps, "residual mid", &residual_mid_, N * C);
    c.plan(keeps, "fc", &fc_out_, N * hidden);
    if (trains || setup_.is_fp8()) c.plan(false, "dhidden", &dhidden_, N * std::max(hidden, qkv));
    if (!trains) return;
    c.plan(false, "dbranch", &dbranch_, N * std::max(C, width));
    c.plan(false, activation_in_place ? "dhidden" : "dactive", &dactive_, N * F);
    c.plan(false, "delta", &delta_, rows_of_lse);
}

template <class Real>
void DecoderBlock<Real>::forward(Real* out, const Pass& pass) {
    forward_to_activation(pass);
    fc_proj_.forward(out, fc_proj_in_, pass, residual_mid_);  // (N, C)
}

template <class Real>
void DecoderBlock<Real>::forward_to_activation(const Pass& pass) {
    qkv_in_ = ln1_.forward(qkv_, residual_, pass);                      // (N, C)
    make_qkv(qkv_in_, 0, pass);                                         // (N, NH + 2 NKV, HD)
    measure_logits(pass);                                               // (NH)
    attn_proj_in_ = attend(pass);                                       // (N, NH HD)
    attn_proj_.forward(residual_mid_, attn_proj_in_, pass, residual_);  // (N, C)
    fc_in_ = ln2_.forward(fc_, residual_mid_, pass);                    // (N, C)
    fc_proj_in_ = fc_and_activate(pass);                                // (N, F)
}

template <class Real>
void DecoderBlock<Real>::decode(Real* out, int first, const Pass& pass) {
    const size_t begin = static_cast<size_t>(first) * setup_.model.channels;
    Real *const residual = residual_ + begin, *const mid = residual_mid_ + begin;
    make_qkv(ln1_.forward(qkv_, residual, pass), first, pass);
    attention_decode<Real>(attention_, attention_low_, qkv_out_, first, pass.N, heads_, pass.stream);
    attn_proj_.forward(mid, attn_proj_.input(attention_, attention_low_, pass), pass, residual);
    fc_.forward(fc_out_, ln2_.forward(fc_, mid, pass), pass);
    fc_proj_.forward(out + begin, activate(pass), pass, mid);
}

template <class Real>
void DecoderBlock<Real>::recompute(const Pass& pass) {
    const Recompute level = setup_.recompute;
    if (level == Recompute::block) return forward_to_activation(pass);
    if (level >= Recompute::norm) {
        qkv_in_ = ln1_.forward(qkv_, residual_, pass);
        fc_in_ = ln2_.forward(fc_, residual_mid_, pass);
    }
    if (level >= Recompute::gelu) fc_proj_in_ = activate(pass);
}

template <class Real>
Operand<Real> DecoderBlock<Real>::activate(const Pass& pass) {
    const int N = pass.N, F = fc_proj_.shape().C;
    Operand<Real> active = fc_proj_.input_target(pass);
    if constexpr (kCanBeFp8<Real>)
        if (active.casts()) {
            do {
                activation_forward_fp8(activation_, active.codes, fc_out_, N, F, active.cast_pass, pass.stream);
            } while (!fc_proj_.accept(active, pass));
            return active;
        }
    activation_forward(activation_, active.value, fc_out_, N, F, pass.stream);
    return fc_proj_.input(active.value, nullptr, pass);
}

// Computes attention for attn_proj. Backward also reads the output, with the part that rounding lost.
template <class Real>
Operand<Real> DecoderBlock<Real>::attend(const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        Operand<Real> x = attn_proj_.input_target(pass);
        if (x.casts_at_once() && attention_casts(pass)) {
            const bool is_read =  // as values
                pass.kind == PassKind::recompute || (pass.kind == PassKind::training && keeps_rows());
            Real* const out = is_read ? attention_ : nullptr;
            Real* const low = is_read ? attention_low_ : nullptr;
            attention_forward_fp8(x.codes, out, low, lse_, qkv_out_, pass.B, pass.T, heads_, x.cast_pass, pass.tickets,
                                  pass.stream, pass.documents);
            attn_proj_.accept(x, pass);
            return x;
        }
    }
    attention_forward<Real>(attention_, attention_low_, lse_, qkv_out_, pass.B, pass.T, heads_, pass.tickets,
                            pass.stream, pass.documents);
    return attn_proj_.input(attention_, attention_low_, pass);
}

template <class Real>
Gradient<Real> DecoderBlock<Real>::backward(const Gradient<Real>& dstream, Linear<Real>* before, const Pass& pass) {
    Real* const dresidual = dstream.value;  // (N, C)

    // The MLP's branch.
    const Gradient<Real> dfc = fc_proj_backward(dstream, pass);
    fc_.backward(dbranch_, dfc, fc_in_, pass);
    const Gradient<Real> dmid = ln2_.backward(dresidual, dresidual, dbranch_, residual_mid_, &attn_proj_, pass);

    // Attention's branch.
    attn_proj_.backward(dbranch_, dmid, attn_proj_in_, pass);
    qkv_.backward(dbranch_, attend_backward(pass), qkv_in_, pass);
    return ln1_.backward(dresidual, dresidual, dbranch_, residual_, before, pass);
}

template <class Real>
Gradient<Real> DecoderBlock<Real>::fc_proj_backward(const Gradient<Real>& dstream, const Pass& pass) {
    if (gelu_products_.fit_backward(pass))
        return gelu_products_.backward(fc_out_, dhidden_, dstream, fc_proj_in_, pass);
    fc_proj_.backward(dactive_, dstream, fc_proj_in_, pass);
    return activate_backward(pass);
}

template <class Real>
Gradient<Real> DecoderBlock<Real>::activate_backward(const Pass& pass) {
    const int N = pass.N, F = fc_proj_.shape().C;
    Gradient<Real> dfc = fc_.gradient_target(pass);
    const BiasGradient bias{sums_bias_gradient(activation_) ? fc_.dbias() : nullptr, pass.scratch, pass.accumulate};
    const bool bias_done = bias.dbias != nullptr;
    if constexpr (kCanBeFp8<Real>)
        if (const Quantized<e5m2>* const codes = dfc.e5m2_codes()) {
            do {
                activation_backward_fp8(activation_, *codes, bias, dactive_, fc_out_, N, F, dfc.cast_pass, pass.stream);
            } while (!fc_.accept(dfc, pass));
            dfc.bias_done = bias_done;
            return dfc;
        }
    activation_backward<Real>(activation_, dhidden_, bias, dactive_, fc_out_, N, F, pass.stream);
    return {.value = dhidden_, .bias_done = bias_done};
}

template class DecoderBlock<float>;
template class DecoderBlock<bf16>;

}  // namespace llmc
