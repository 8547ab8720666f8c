// Layer norm, and RMS norm (arXiv 1910.07467), which is layer norm without the mean and without the shift. Forward is
// fused with the residual add before it, backward with the gradient of the residual stream, and both, in the FP8
// versions, with the quantization of their output. The two norms are one template, so they move the same bytes.
//
//   residual = inp1 + inp2                        rounded once to Real
//   layer    (residual - mean) * rstd * weight + shift,   rstd = 1 / sqrt(variance + 1e-5)
//   rms      residual * rstd * weight,                    rstd = 1 / sqrt(mean(residual^2) + eps)
//
// Statistics are those of the rounded residual. Norming the stored residual again, as recomputation does, gives the
// same bits. Deterministic: the number of partial sums depends on N and C alone, so results are equal on every card.
#pragma once
#include <cstddef>

#include "llmc/kernels/quantize.h"

namespace llmc {

// RMS norm is layer norm without the mean and without the shift.
enum class NormKind { layer, rms };

// A layer norm if it has a shift, otherwise an RMS norm.
template <class Real>
struct NormParameters {
    const Real* weight = nullptr;  // (C); RMS norm's may be nullptr (1)
    const Real* shift = nullptr;   // (C), of a layer norm only
    float eps = 1e-5f;

    NormKind kind() const { return shift != nullptr ? NormKind::layer : NormKind::rms; }
};

// ---- forward -------------------------------------------------------------------------------------------------------

//   inp1, inp2, residual, normed  (N, C) Real, float or bf16; N >= 1, C % 8 == 0, C <= 12288
//   mean, rstd                    (N) float; nullptr if no backward follows. RMS norm has no mean: nullptr
//
// inp2 and residual go together; if they are nullptr, inp1 is normed. residual and normed may be inp1 or inp2, but not
// each other.
//
// A row stays in the registers of one warp (C <= 2048) or of the block: one read, two-pass statistics. Moves
// 4 sizeof(Real) bytes per element with the add (8C per row in bf16), 2 sizeof(Real) without (4C).
template <class Real>
void norm_forward(const NormParameters<Real>& norm, Real* normed, float* mean, float* rstd, Real* residual,
                  const Real* inp1, const Real* inp2, int N, int C, stream_t stream);

// The same with `out` = F8(normed) instead of normed: the same bits in residual, mean and rstd. Layer norm casts the
// FP32 value. RMS norm rounds to BF16 first, so its bytes are those of norm_forward<bf16> and quantize(). N % 16 ==
// 0 and C % 16 == 0; quantize.h explains `out` and `pass`.
//
// Pass `measure` writes mean and rstd, but neither residual nor `out`: a second pass finds its inputs unchanged even if
// residual is inp1 or inp2.
//
// A block's rows of codes pass through shared memory and leave in both layouts. Moves 8 bytes per element with the add,
// 4 without (4 and 2 in pass `measure`).
void norm_forward_fp8(const NormParameters<bf16>& norm, const Quantized<e4m3>& out, float* mean, float* rstd,
                      bf16* residual, const bf16* inp1, const bf16* inp2, int N, int C, QuantizePass pass,
                      stream_t stream);

// ---- backward ------------------------------------------------------------------------------------------------------

// dinp = dresidual + gradient of the forward's residual, which is also that of inp1 and inp2.
//
//   dinp, dresidual, dout, inp  (N, C) Real; inp is the residual that was normed. dresidual may be nullptr (0); dinp
//                               may be dresidual or dout
//   mean, rstd (N) float        from the forward; RMS norm has no mean: nullptr
//
// Blocks walk over rows and keep the sums of columns in registers; a second kernel adds the blocks' sums in order.
// Moves 4 sizeof(Real) bytes per element (8C per row in bf16; 6C without dresidual). After TransformerEngine's ln_bwd.
struct NormGradients {
    float* dweight = nullptr;  // (C), nullptr without a weight; overwritten, or added to if `accumulate`
    float* dshift = nullptr;   // the same, of a layer norm
    float* scratch = nullptr;  // norm_backward_scratch(N, C) floats, contents irrelevant; nullptr without a weight
    bool accumulate = false;
};
template <class Real>
void norm_backward(const NormParameters<Real>& norm, const NormGradients& gradients, Real* dinp, const Real* dresidual,
                   const Real* dout, const Real* inp, const float* mean, const float* rstd, int N, int C,
                   stream_t stream);
size_t norm_backward_scratch(NormKind kind, int N, int C);

// The same, and `out` = F8(dinp as rounded to BF16): the gradient of the residual stream is also the output gradient of
// the linear layer that was added to it last. N % 16 == 0, C % 16 == 0 and C <= kWidestFusedGradient.
//
// dinp is a link of a chain, so this runs once: passes `train` and `train_counted` write everything. `measure` writes
// dinp, dweight, dshift and the state's amax_now and bad; quantize() turns dinp into FP8 afterwards. No other pass.
//
// bias_parts, norm_backward_fp8_bias_parts(N, C) floats, gets partial sums of dinp over rows, except in pass
// `measure`; finish_bias_gradient() adds them up where the linear layer's gradient is computed. May be nullptr, and is
// not written by an RMS norm, whose linear layers have no bias.
//
// A block takes 32 rows (16 if C > 2048) at a time, 4 of them in registers; their codes pass through shared memory and
// leave in both layouts. Moves 10 bytes per element with dresidual, 8 without (8 and 6 in pass `measure`).
constexpr int kWidestFusedGradient = 4096;
template <class F8>
void norm_backward_fp8(const NormParameters<bf16>& norm, const NormGradients& gradients, const Quantized<F8>& out,
                       float* bias_parts, bf16* dinp, const bf16* dresidual, const bf16* dout, const bf16* inp,
                       const float* mean, const float* rstd, int N, int C, QuantizePass pass, stream_t stream);
size_t norm_backward_fp8_scratch(NormKind kind, int N, int C);
size_t norm_backward_fp8_bias_parts(int N, int C);

// dbias (C) = sums over rows of dinp, added to dbias if `accumulate`.
void finish_bias_gradient(float* dbias, const float* bias_parts, int N, int C, bool accumulate, stream_t stream);

}  // namespace llmc
