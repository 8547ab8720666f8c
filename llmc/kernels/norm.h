// Layer norm, and RMS norm (arXiv 1910.07467), which is layer norm without the mean and without the shift. Backward is
// fused with the gradient of the residual stream, and the FP8 versions of both directions with the quantization of
// their output. The two norms are one template, so they move the same bytes.
//
//   layer    (inp - mean) * rstd * weight + shift,   rstd = 1 / sqrt(variance + 1e-5)
//   rms      inp * rstd * weight,                    rstd = 1 / sqrt(mean(inp^2) + eps)
//
// Deterministic: the number of partial sums depends on N and C alone, so results are equal on every card.
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

//   inp, normed  (N, C) Real, float or bf16; N >= 1, C % 8 == 0, C <= 12288; they may be the same
//   mean, rstd   (N) float; nullptr if no backward follows. RMS norm has no mean: nullptr
//
// A row stays in the registers of one warp (C <= 2048) or of the block: one read, two-pass statistics. Moves
// 2 sizeof(Real) bytes per element (4C per row in bf16).
template <class Real>
void norm_forward(const NormParameters<Real>& norm, Real* normed, float* mean, float* rstd, const Real* inp, int N,
                  int C, stream_t stream);

// The same with `out` = F8(normed) instead of normed: the same bits in mean and rstd. Layer norm casts the FP32 value.
// RMS norm rounds to BF16 first, so its bytes are those of norm_forward<bf16> and quantize(). N % 16 == 0 and
// C % 16 == 0; quantize.h explains `out` and `pass`. Pass `measure` writes mean and rstd, but not `out`.
//
// A block's rows of codes pass through shared memory and leave in both layouts. Moves 4 bytes per element (2 in pass
// `measure`).
void norm_forward_fp8(const NormParameters<bf16>& norm, const Quantized<e4m3>& out, float* mean, float* rstd,
                      const bf16* inp, int N, int C, QuantizePass pass, stream_t stream);

// ---- backward ------------------------------------------------------------------------------------------------------

// dinp = dresidual + gradient of the forward's inp through the norm. inp is the residual stream, which later blocks
// read, too; dresidual is its gradient from those.
//
//   dinp, dresidual, dout, inp  (N, C) Real; dresidual may be nullptr (0); dinp may be dresidual or dout
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

// The same, and `out` = E5M2(dinp as rounded to BF16), because the gradient of the residual stream is also the output
// gradient of the linear layer that was added to it last. N % 16 == 0, C % 16 == 0 and C <= kWidestFusedGradient.
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
void norm_backward_fp8(const NormParameters<bf16>& norm, const NormGradients& gradients, const Quantized<e5m2>& out,
                       float* bias_parts, bf16* dinp, const bf16* dresidual, const bf16* dout, const bf16* inp,
                       const float* mean, const float* rstd, int N, int C, QuantizePass pass, stream_t stream);
size_t norm_backward_fp8_scratch(NormKind kind, int N, int C);
size_t norm_backward_fp8_bias_parts(int N, int C);

// dbias (C) = sums over rows of dinp, added to dbias if `accumulate`.
void finish_bias_gradient(float* dbias, const float* bias_parts, int N, int C, bool accumulate, stream_t stream);

}  // namespace llmc
