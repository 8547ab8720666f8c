// The parts of a GPT-2 block that exist in two forms: in the activations' own type, and in FP8, where the producer of a
// linear layer's operand quantizes it on the way and the BF16 form is never written.
#include <type_traits>

#include "llmc/device/trace.h"
#include "llmc/kernels/attention_fp8.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/gelu.h"
#include "llmc/kernels/gelu_fp8.h"
#include "llmc/kernels/layernorm.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/kernels/layernorm_fp8.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/kernels/quantize_flat.h"
#include "llmc/model/gpt2.h"

namespace llmc {
namespace {

// A linear layer's parameters in its block's unit, and its channels in units of C.
struct LinearLayer {
    size_t weight, bias;
    int inputs, outputs;
};

LinearLayer layer_of(BlockLinear linear) {
    switch (linear) {
        case BlockLinear::qkv:
            return {BlockTensor::qkv_weight, BlockTensor::qkv_bias, 1, 3};
        case BlockLinear::attn_proj:
            return {BlockTensor::attn_proj_weight, BlockTensor::attn_proj_bias, 1, 1};
        case BlockLinear::fc:
            return {BlockTensor::fc_weight, BlockTensor::fc_bias, 1, 4};
        case BlockLinear::fc_proj:
            break;
    }
    return {BlockTensor::fc_proj_weight, BlockTensor::fc_proj_bias, 4, 1};
}

template <class Real>
constexpr bool kCanBeFp8 = LLMC_ENABLE_FP8&& std::is_same_v<Real, bf16>;

}  // namespace

template <class Real>
void Gpt2<Real>::prepare_weights(stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        if (fp8_) prepare_fp8_scales(stream);
    }
    if constexpr (kCanBeFp8<Real>)
        parameters_.publish(stream, fp8_ ? fp8_->write_pass() : QuantizePass::write);
    else
        parameters_.publish(stream);
    if constexpr (kCanBeFp8<Real>) {
        if (!fp8_) return;
        if (fp8_->has_head()) quantize_head_weight(stream);
        if (!fp8_travels()) return quantize_weights(fp8_->write_pass(), stream);
        if (parameters_.stage() == 3) return;  // a block at a time, in backward
        for (int l = 0; l < config_.layers; l++) {
            parameters_.gather(block_unit(l), stream);
            const ProfileRange range("transpose FP8 weights", stream);
            transpose_weights(l, stream);
            parameters_.release(block_unit(l), stream);
        }
    }
}

template <class Real>
std::vector<Fp8Loss> Gpt2<Real>::fall_back(stream_t stream) {
    std::vector<Fp8Loss> losses;
    if constexpr (kCanBeFp8<Real>) {
        if (fp8_) losses = fp8_->take_losses();
        for (const Fp8Loss& loss : losses) {
            fp8_->leave_fp8(loss.tensor.block, loss.tensor.linear);
            if (loss.tensor.head) continue;  // its working copy is the embedding's
            parameters_.leave_fp8(block_unit(loss.tensor.block), layer_of(loss.tensor.linear).weight, stream);
        }
    }
    return losses;
}

// Scales are functions of the master weights alone, whoever has which slice of them.
template <class Real>
void Gpt2<Real>::prepare_fp8_scales(stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        for (int l = 0; l < config_.layers; l++)
            for (const BlockLinear linear : kBlockLinearLayers)
                if (is_fp8(l, linear) && fp8_->scaling() != Fp8Scaling::mx)  // whose source is the BF16 copy
                    parameters_.keep_in_fp8(block_unit(l), layer_of(linear).weight, fp8_->w(l, linear).state);
        if (parameters_.to_be_measured() && !fp8_->has_block_scales()) {
            if (fp8_travels())
                parameters_.measure_slices(stream);
            else
                quantize_weights(QuantizePass::measure, stream);
        }
        parameters_.set_measured();
        if (fp8_travels()) fp8_->share_weight_amaxes(stream);
        const ProfileRange range("FP8 weight scales", stream);
        fp8_->set_weight_scales(stream);
    }
}

template <class Real>
Quantized<e4m3> Gpt2<Real>::fp8_weight(int l, BlockLinear linear) const {
    Quantized<e4m3> w = fp8_->w(l, linear);
    if (fp8_travels()) w.row = const_cast<e4m3*>(parameters_.fp8_weight(block_unit(l), layer_of(linear).weight));
    return w;
}

// From the working copy, which the embedding has on every rank.
template <class Real>
void Gpt2<Real>::quantize_head_weight(stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        const size_t unit = embedding_unit();
        parameters_.gather(unit, stream);
        const bf16* wte = parameters_.weight(unit, EmbeddingTensor::wte);
        const auto pass = [&](QuantizePass pass) {
            quantize<e4m3>(fp8_->w(config_.layers, kHeadLinear), nullptr, nullptr, wte, nullptr, config_.padded_vocab(),
                           config_.channels, false, pass, stream);
        };
        {
            const ProfileRange range("quantize the head's weight", stream);
            pass(QuantizePass::measure);
            fp8_->set_head_weight_scale(stream);
            pass(fp8_->write_pass());
        }
        parameters_.release(unit, stream);
    }
}

// Gathered FP8 weights, for dgrad.
template <class Real>
void Gpt2<Real>::transpose_weights(int l, stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        if (!fp8_travels()) return;
        for (const BlockLinear linear : kBlockLinearLayers) {
            if (!is_fp8(l, linear)) continue;
            const LinearLayer layer = layer_of(linear);
            const Quantized<e4m3> w = fp8_weight(l, linear);
            transpose_codes(w.transposed, w.row, layer.outputs * config_.channels, layer.inputs * config_.channels,
                            stream);
        }
    }
}

template <class Real>
void Gpt2<Real>::quantize_weights(QuantizePass pass, stream_t stream) {
    const int C = config_.channels;
    for (int l = 0; l < config_.layers; l++)
        for (const BlockLinear linear : kBlockLinearLayers) {
            if (!is_fp8(l, linear)) continue;
            const LinearLayer layer = layer_of(linear);
            const int rows = layer.outputs * C, columns = layer.inputs * C;
            const Quantized<e4m3> w = fp8_->w(l, linear);
            if (fp8_->scaling() == Fp8Scaling::mx) parameters_.gather(block_unit(l), stream);
            const ProfileRange range(pass == QuantizePass::measure ? "measure FP8 weights" : "quantize weights",
                                     stream);
            if (fp8_->scaling() == Fp8Scaling::mx) {
                quantize_blocks(w, nullptr, nullptr, weight(l, layer.weight), rows, columns, Fp8Scaling::mx, false,
                                fp8_->train_pass(), stream);
                parameters_.release(block_unit(l), stream);
                continue;
            }
            const float* master = parameters_.master(block_unit(l), layer.weight);
            if (fp8_->scaling() == Fp8Scaling::block)
                quantize_weight_tiles(w, master, rows, columns, fp8_->train_pass(), stream);
            else
                quantize_weight(w, master, rows, columns, pass, stream);
        }
}

// ---- producers -----------------------------------------------------------------------------------------------------

template <class Real>
void Gpt2<Real>::norm1(int l, const Real* branch, int N, PassKind kind, stream_t stream) {
    Block& b = activations_.blocks[l];
    norm(l, BlockLinear::qkv, b.ln1, b.ln1_mean, b.ln1_rstd, branch ? b.residual : nullptr,
         branch ? activations_.blocks[l - 1].residual_mid : b.residual, branch, BlockTensor::ln1_weight,
         BlockTensor::ln1_bias, N, kind, stream);
}

template <class Real>
void Gpt2<Real>::norm2(int l, const Real* branch, int N, PassKind kind, stream_t stream) {
    Block& b = activations_.blocks[l];
    norm(l, BlockLinear::fc, b.ln2, b.ln2_mean, b.ln2_rstd, branch ? b.residual_mid : nullptr,
         branch ? b.residual : b.residual_mid, branch, BlockTensor::ln2_weight, BlockTensor::ln2_bias, N, kind, stream);
}

// A norm whose output is the input of `linear`.
template <class Real>
void Gpt2<Real>::norm(int l, BlockLinear linear, Real* normed, float* mean, float* rstd, Real* residual,
                      const Real* inp1, const Real* inp2, size_t weight_tensor, size_t bias_tensor, int N,
                      PassKind kind, stream_t stream) {
    const int C = config_.channels;
    const Real* w = weight(l, weight_tensor);
    const Real* shift = weight(l, bias_tensor);
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, linear)) {
            if (fp8_->has_block_scales()) {
                layernorm_forward<Real>(fp8_->source(), mean, rstd, residual, inp1, inp2, nullptr, w, shift, N, C,
                                        stream);
                return quantize_x_blocks(l, linear, fp8_->source(), N, C, kind, stream);
            }
            return fp8_->fill(l, linear, Fp8Role::x, kind, stream, [&](QuantizePass pass) {
                layernorm_forward_fp8(fp8_->x(l, linear, kind), mean, rstd, residual, inp1, inp2, nullptr, w, shift, N,
                                      C, pass, stream);
            });
        }
    layernorm_forward<Real>(normed, mean, rstd, residual, inp1, inp2, nullptr, w, shift, N, C, stream);
}

template <class Real>
void Gpt2<Real>::gelu(int l, int N, PassKind kind, stream_t stream) {
    const int C = config_.channels;
    Block& b = activations_.blocks[l];
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, BlockLinear::fc_proj)) {
            if (fp8_->has_block_scales()) {
                gelu_forward(fp8_->source(), b.fc, static_cast<size_t>(N) * 4 * static_cast<size_t>(C), stream);
                return quantize_x_blocks(l, BlockLinear::fc_proj, fp8_->source(), N, 4 * C, kind, stream);
            }
            return fp8_->fill(l, BlockLinear::fc_proj, Fp8Role::x, kind, stream, [&](QuantizePass pass) {
                gelu_forward_fp8(fp8_->x(l, BlockLinear::fc_proj, kind), b.fc, N, 4 * C, pass, stream);
            });
        }
    gelu_forward(b.gelu, b.fc, static_cast<size_t>(N) * 4 * static_cast<size_t>(C), stream);
}

// Attention casts its results where a sequence fills whole pieces of a transposed row; else they go through BF16.
template <class Real>
bool Gpt2<Real>::attention_casts(int T) const {
    return T % kQuantizedAttentionTokens == 0;
}

// Attention, and its output in FP8 for attn_proj. The backward wants the output too, unrounded.
template <class Real>
void Gpt2<Real>::attention(int l, int B, int T, PassKind kind, stream_t stream) {
    const Block& b = activations_.blocks[l];
    const int NH = config_.heads, HD = config_.head_dim();
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, BlockLinear::attn_proj)) {
            const auto x = fp8_->x(l, BlockLinear::attn_proj, kind);
            if (fp8_->casts_at_once(kind) && attention_casts(T)) {
                const bool backward_follows = kind == PassKind::recompute ||
                                              (kind == PassKind::training && activations_.recompute < Recompute::block);
                Real* const out = backward_follows ? b.attention : nullptr;
                Real* const low = backward_follows ? b.attention_low : nullptr;
                return fp8_->fill(l, BlockLinear::attn_proj, Fp8Role::x, kind, stream, [&](QuantizePass pass) {
                    attention_forward_fp8(x, out, low, b.lse, b.qkv, B, T, NH, HD, pass, stream);
                });
            }
            attention_forward<Real>(b.attention, b.attention_low, b.lse, b.qkv, B, T, NH, HD, stream);
            if (fp8_->has_block_scales())
                return quantize_x_blocks(l, BlockLinear::attn_proj, b.attention, B * T, config_.channels, kind, stream);
            return fp8_->fill(l, BlockLinear::attn_proj, Fp8Role::x, kind, stream, [&](QuantizePass pass) {
                quantize<e4m3>(x, nullptr, nullptr, b.attention, b.attention_low, B * T, config_.channels, false, pass,
                               stream);
            });
        }
    attention_forward<Real>(b.attention, b.attention_low, b.lse, b.qkv, B, T, NH, HD, stream);
}

// ---- gradients of the residual stream ------------------------------------------------------------------------------

template <class Real>
bool Gpt2<Real>::takes_dout_from_norm(int l, BlockLinear linear) const {
    return l >= 0 && is_fp8(l, linear) && (linear == BlockLinear::attn_proj || linear == BlockLinear::fc_proj) &&
           !fp8_->has_block_scales() && config_.channels <= kWidestFusedGradient;
}

// Back through a norm and the residual addition before it: what was dresidual (nullptr: 0) becomes the gradient of the
// norm's input. That is also the gradient of what was added there, the output of `reader` (reader_layer < 0: of the
// embedding), and leaves in FP8 for it.
template <class Real>
void Gpt2<Real>::norm_backward(const NormGradient& norm, const Real* dresidual, const Real* dout, int reader_layer,
                               BlockLinear reader, bool accumulate, stream_t stream) {
    if constexpr (kCanBeFp8<Real>)
        if (takes_dout_from_norm(reader_layer, reader))
            return fp8_->e4m3_gradients()
                       ? norm_backward_fp8<e4m3>(norm, dresidual, dout, reader_layer, reader, accumulate, stream)
                       : norm_backward_fp8<e5m2>(norm, dresidual, dout, reader_layer, reader, accumulate, stream);
    layernorm_backward<Real>(activations_.dresidual, dresidual, norm.dweight, norm.dshift, activations_.scratch, dout,
                             norm.inp, norm.weight, norm.mean, norm.rstd, B_ * T_, config_.channels, accumulate,
                             stream);
}

template <class Real>
template <class F8>
void Gpt2<Real>::norm_backward_fp8(const NormGradient& norm, const Real* dresidual, const Real* dout, int reader_layer,
                                   BlockLinear reader, bool accumulate, stream_t stream) {
    fp8_->fill_once(reader_layer, reader, Fp8Role::dout, stream, [&](QuantizePass pass) {
        layernorm_backward_fp8<F8>(fp8_->template dout<F8>(reader_layer, reader), fp8_->bias_parts(),
                                   activations_.dresidual, dresidual, norm.dweight, norm.dshift, activations_.scratch,
                                   dout, norm.inp, norm.weight, norm.mean, norm.rstd, B_ * T_, config_.channels,
                                   accumulate, pass, stream);
    });
}

template <class Real>
void Gpt2<Real>::quantize_x_blocks(int l, BlockLinear linear, const bf16* source, int N, int C, PassKind kind,
                                   stream_t stream) {
    quantize_blocks(fp8_->x(l, linear, kind), nullptr, nullptr, source, N, C, fp8_->scaling(), false,
                    fp8_->block_pass(kind), stream);
}

// ---- the head
// --------------------------------------------------------------------------------------------------------

// logits (rows, Vp) of a chunk of rows of the last norm.
template <class Real>
void Gpt2<Real>::head_products_forward(const Real* lnf, const Real* wte, int rows, PassKind kind, stream_t stream) {
    const int C = config_.channels, Vp = config_.padded_vocab();
    if constexpr (kCanBeFp8<Real>)
        if (head_is_fp8()) {
            const int head = fp8_->head_block();
            const auto x = fp8_->x(head, kHeadLinear, kind);
            const auto w = fp8_->w(head, kHeadLinear);
            fp8_->fill(head, kHeadLinear, Fp8Role::x, kind, stream, [&](QuantizePass pass) {
                quantize<e4m3>(x, nullptr, nullptr, lnf, nullptr, rows, C, false, pass, stream);
            });
            return matmul_.forward_fp8(activations_.logits, x.row, x.row_scale_inv(), w.row, w.row_scale_inv(), nullptr,
                                       rows, C, Vp, stream);
        }
    matmul_.forward<Real>(activations_.logits, lnf, wte, nullptr, rows, C, Vp, stream);
}

// Gradients of the same rows and of wte, from the chunk's dlogits.
template <class Real>
void Gpt2<Real>::head_products_backward(Real* dlnf, float* dwte, const Real* lnf, const Real* wte, int rows,
                                        bool accumulate, stream_t stream) {
    const int C = config_.channels, Vp = config_.padded_vocab();
    if constexpr (kCanBeFp8<Real>)
        if (head_is_fp8())
            return fp8_->e4m3_gradients() ? head_products_backward_fp8<e4m3>(dlnf, dwte, rows, accumulate, stream)
                                          : head_products_backward_fp8<e5m2>(dlnf, dwte, rows, accumulate, stream);
    matmul_.dgrad(dlnf, activations_.logits, wte, rows, C, Vp, stream);
    matmul_.wgrad(dwte, activations_.logits, lnf, rows, C, Vp, accumulate, stream);
}

template <class Real>
template <class F8>
void Gpt2<Real>::head_products_backward_fp8(Real* dlnf, float* dwte, int rows, bool accumulate, stream_t stream) {
    const int head = fp8_->head_block(), C = config_.channels, Vp = config_.padded_vocab();
    const auto x = fp8_->x(head, kHeadLinear, PassKind::training);
    const auto w = fp8_->w(head, kHeadLinear);
    const auto dlogits = fp8_->template dout<F8>(head, kHeadLinear);
    fp8_->fill(head, kHeadLinear, Fp8Role::dout, PassKind::training, stream, [&](QuantizePass pass) {
        quantize<F8>(dlogits, nullptr, nullptr, activations_.logits, nullptr, rows, Vp, false, pass, stream);
    });
    matmul_.wgrad_fp8(dwte, dlogits.transposed, dlogits.transposed_scale_inv(), x.transposed, x.transposed_scale_inv(),
                      rows, C, Vp, accumulate, stream);
    matmul_.dgrad_fp8(dlnf, dlogits.row, dlogits.row_scale_inv(), w.transposed, w.transposed_scale_inv(), rows, C, Vp,
                      stream);
}

// ---- linear layers -------------------------------------------------------------------------------------------------

template <class Real>
void Gpt2<Real>::linear_forward(int l, BlockLinear linear, Real* out, const Real* inp, int N, PassKind kind,
                                stream_t stream) {
    const LinearLayer layer = layer_of(linear);
    const int C = layer.inputs * config_.channels, OC = layer.outputs * config_.channels;
    const Real* bias = weight(l, layer.bias);
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, linear)) {
            const auto x = fp8_->x(l, linear, kind);
            const auto w = fp8_weight(l, linear);
            return matmul_.forward_fp8(out, x.row, x.row_scale_inv(), w.row, w.row_scale_inv(), bias, N, C, OC, stream);
        }
    matmul_.forward(out, inp, weight(l, layer.weight), bias, N, C, OC, stream);
}

// Gradients of the input, the weight and the bias, from the output's.
template <class Real>
void Gpt2<Real>::linear_backward(int l, BlockLinear linear, Real* dinp, const Real* dout, const Real* inp,
                                 bool accumulate, stream_t stream) {
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, linear))
            return fp8_->e4m3_gradients() ? linear_backward_fp8<e4m3>(l, linear, dinp, dout, accumulate, stream)
                                          : linear_backward_fp8<e5m2>(l, linear, dinp, dout, accumulate, stream);
    const LinearLayer layer = layer_of(linear);
    const int N = B_ * T_, C = layer.inputs * config_.channels, OC = layer.outputs * config_.channels;
    bias_gradient(gradient(l, layer.bias), activations_.scratch, dout, N, OC, accumulate, stream);
    matmul_.wgrad(gradient(l, layer.weight), dout, inp, N, C, OC, accumulate, stream);
    matmul_.dgrad(dinp, dout, weight(l, layer.weight), N, C, OC, stream);
}

// Back through attention and qkv: dattention (N, C) is the gradient of attention's output. dqkv (N, 3C) is used where
// it does not leave attention in FP8.
template <class Real>
void Gpt2<Real>::attention_and_linear_backward(int l, Real* dinp, const Real* dattention, Real* dqkv, bool accumulate,
                                               stream_t stream) {
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, BlockLinear::qkv) && fp8_->casts_at_once(PassKind::training) && attention_casts(T_))
            return fp8_->e4m3_gradients()
                       ? attention_and_linear_backward_fp8<e4m3>(l, dinp, dattention, accumulate, stream)
                       : attention_and_linear_backward_fp8<e5m2>(l, dinp, dattention, accumulate, stream);
    const Block& b = activations_.blocks[l];
    attention_backward<Real>(dqkv, activations_.delta, dattention, b.qkv, b.attention, b.attention_low, b.lse, B_, T_,
                             config_.heads, config_.head_dim(), stream);
    linear_backward(l, BlockLinear::qkv, dinp, dqkv, b.ln1, accumulate, stream);
}

// Back through GELU and fc: dgelu (N, 4C) is the gradient of GELU's output, and is overwritten.
template <class Real>
void Gpt2<Real>::gelu_and_linear_backward(int l, Real* dinp, Real* dgelu, bool accumulate, stream_t stream) {
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8(l, BlockLinear::fc))
            return fp8_->e4m3_gradients() ? gelu_and_linear_backward_fp8<e4m3>(l, dinp, dgelu, accumulate, stream)
                                          : gelu_and_linear_backward_fp8<e5m2>(l, dinp, dgelu, accumulate, stream);
    const int N = B_ * T_, C = config_.channels;
    const Block& b = activations_.blocks[l];
    gelu_backward<Real>(dgelu, gradient(l, BlockTensor::fc_bias), activations_.scratch, dgelu, b.fc, N, 4 * C,
                        accumulate, stream);
    matmul_.wgrad(gradient(l, BlockTensor::fc_weight), dgelu, b.ln2, N, C, 4 * C, accumulate, stream);
    matmul_.dgrad(dinp, dgelu, weight(l, BlockTensor::fc_weight), N, C, 4 * C, stream);
}

template <class Real>
template <class F8>
void Gpt2<Real>::linear_backward_fp8(int l, BlockLinear linear, Real* dinp, const Real* dout, bool accumulate,
                                     stream_t stream) {
    const LinearLayer layer = layer_of(linear);
    const int N = B_ * T_, OC = layer.outputs * config_.channels;
    float* const dbias = gradient(l, layer.bias);
    if constexpr (std::is_same_v<F8, e4m3>)
        if (fp8_->has_block_scales()) {
            quantize_blocks(fp8_->dout<e4m3>(l, linear), dbias, activations_.scratch, dout, N, OC, fp8_->scaling(),
                            accumulate, fp8_->train_pass(), stream);
            return products_backward_fp8<F8>(l, linear, dinp, accumulate, stream);
        }
    const auto quantize_dout = [&](QuantizePass pass) {
        quantize<F8>(fp8_->template dout<F8>(l, linear), dbias, activations_.scratch, dout, nullptr, N, OC, accumulate,
                     pass, stream);
    };
    if (!takes_dout_from_norm(l, linear))
        fp8_->fill(l, linear, Fp8Role::dout, PassKind::training, stream, quantize_dout);
    else if (fp8_->casts_at_once(PassKind::training))
        finish_bias_gradient(dbias, fp8_->bias_parts(), N, OC, accumulate, stream);
    else
        quantize_dout(fp8_->write_pass());
    products_backward_fp8<F8>(l, linear, dinp, accumulate, stream);
}

template <class Real>
template <class F8>
void Gpt2<Real>::attention_and_linear_backward_fp8(int l, Real* dinp, const Real* dattention, bool accumulate,
                                                   stream_t stream) {
    const Block& b = activations_.blocks[l];
    fp8_->fill(l, BlockLinear::qkv, Fp8Role::dout, PassKind::training, stream, [&](QuantizePass pass) {
        attention_backward_fp8<F8>(fp8_->template dout<F8>(l, BlockLinear::qkv), gradient(l, BlockTensor::qkv_bias),
                                   activations_.scratch, activations_.delta, dattention, b.qkv, b.attention,
                                   b.attention_low, b.lse, B_, T_, config_.heads, config_.head_dim(), accumulate, pass,
                                   stream);
    });
    products_backward_fp8<F8>(l, BlockLinear::qkv, dinp, accumulate, stream);
}

template <class Real>
template <class F8>
void Gpt2<Real>::gelu_and_linear_backward_fp8(int l, Real* dinp, Real* dgelu, bool accumulate, stream_t stream) {
    if constexpr (std::is_same_v<F8, e4m3>)
        if (fp8_->has_block_scales()) {
            const int N = B_ * T_, C = config_.channels;
            gelu_backward<Real>(dgelu, gradient(l, BlockTensor::fc_bias), activations_.scratch, dgelu,
                                activations_.blocks[l].fc, N, 4 * C, accumulate, stream);
            quantize_blocks(fp8_->dout<e4m3>(l, BlockLinear::fc), nullptr, nullptr, dgelu, N, 4 * C, fp8_->scaling(),
                            false, fp8_->train_pass(), stream);
            return products_backward_fp8<F8>(l, BlockLinear::fc, dinp, accumulate, stream);
        }
    fp8_->fill(l, BlockLinear::fc, Fp8Role::dout, PassKind::training, stream, [&](QuantizePass pass) {
        gelu_backward_fp8<F8>(fp8_->template dout<F8>(l, BlockLinear::fc), gradient(l, BlockTensor::fc_bias),
                              activations_.scratch, dgelu, activations_.blocks[l].fc, B_ * T_, 4 * config_.channels,
                              accumulate, pass, stream);
    });
    products_backward_fp8<F8>(l, BlockLinear::fc, dinp, accumulate, stream);
}

template <class Real>
template <class F8>
void Gpt2<Real>::products_backward_fp8(int l, BlockLinear linear, Real* dinp, bool accumulate, stream_t stream) {
    const LinearLayer layer = layer_of(linear);
    const int N = B_ * T_, C = layer.inputs * config_.channels, OC = layer.outputs * config_.channels;
    const auto x = fp8_->x(l, linear, PassKind::training);
    const auto w = fp8_weight(l, linear);
    const auto dout = fp8_->template dout<F8>(l, linear);
    matmul_.wgrad_fp8(gradient(l, layer.weight), dout.transposed, dout.transposed_scale_inv(), x.transposed,
                      x.transposed_scale_inv(), N, C, OC, accumulate, stream);
    matmul_.dgrad_fp8(dinp, dout.row, dout.row_scale_inv(), w.transposed, w.transposed_scale_inv(), N, C, OC, stream);
}

// The class as a whole is instantiated in gpt2.cpp; these are the members defined here.
#define LLMC_INSTANTIATE(Real)                                                                                      \
    template void Gpt2<Real>::head_products_forward(const Real*, const Real*, int, PassKind, stream_t);             \
    template void Gpt2<Real>::head_products_backward(Real*, float*, const Real*, const Real*, int, bool, stream_t); \
    template void Gpt2<Real>::transpose_weights(int, stream_t);                                                     \
    template std::vector<Fp8Loss> Gpt2<Real>::fall_back(stream_t);                                                  \
    template void Gpt2<Real>::prepare_weights(stream_t);                                                            \
    template void Gpt2<Real>::norm1(int, const Real*, int, PassKind, stream_t);                                     \
    template void Gpt2<Real>::norm2(int, const Real*, int, PassKind, stream_t);                                     \
    template void Gpt2<Real>::gelu(int, int, PassKind, stream_t);                                                   \
    template void Gpt2<Real>::attention(int, int, int, PassKind, stream_t);                                         \
    template void Gpt2<Real>::attention_and_linear_backward(int, Real*, const Real*, Real*, bool, stream_t);        \
    template void Gpt2<Real>::norm_backward(const NormGradient&, const Real*, const Real*, int, BlockLinear, bool,  \
                                            stream_t);                                                              \
    template void Gpt2<Real>::linear_forward(int, BlockLinear, Real*, const Real*, int, PassKind, stream_t);        \
    template void Gpt2<Real>::linear_backward(int, BlockLinear, Real*, const Real*, const Real*, bool, stream_t);   \
    template void Gpt2<Real>::gelu_and_linear_backward(int, Real*, Real*, bool, stream_t);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)
#undef LLMC_INSTANTIATE

}  // namespace llmc
