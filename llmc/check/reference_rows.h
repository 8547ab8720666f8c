// Layer norm, GELU, cross-entropy, embeddings' gradients, sums of columns and AdamW in FP64, each with how far a
// correct kernel may be from it. For the card check and for tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "llmc/kernels/classifier.h"
#include "llmc/kernels/update.h"

namespace llmc::reference {

// Half a unit in the last place, relative: what one rounding to Real may cost.
template <class Real>
constexpr double rounding_error() {
    return sizeof(Real) == 2 ? 1.0 / 256 : 6e-8;
}

// ---- layer norm ----------------------------------------------------------------------------------------------------

struct RowStatistics {
    std::vector<double> mean, rstd;
};
RowStatistics row_statistics(const std::vector<double>& x, int N, int C);

// Of mean relative to |mean| + 1, and of rstd: 2^-22.9 for rsqrt.approx.f32, says the PTX ISA, and half of what the sum
// of squares errs: at most 20 additions one after the other and three roundings of a term, 2^-24 each. Together 1.0e-6.
constexpr double kMeanError = 1e-6, kRstdError = 2e-6;
// What FP32 arithmetic may cost before the rounding to Real, relative to |value| + a floor for what cancels.
constexpr double kLayernormError = 5e-6, kNormedFloor = 0.5, kLayernormGradientFloor = 0.2;
constexpr double kLayernormSumError = 2e-6;  // of dweight and dshift, relative to |value| + 1 + N

std::vector<double> normed_rows(const std::vector<double>& x, const RowStatistics& statistics,
                                const std::vector<double>& weight, const std::vector<double>& shift);

struct LayernormGradient {
    std::vector<double> dinp, dweight, dshift;  // dinp without the residual's gradient
};
LayernormGradient layernorm_gradient(const std::vector<double>& x, const std::vector<double>& dout,
                                     const std::vector<double>& weight, const RowStatistics& statistics);

// ---- GELU ----------------------------------------------------------------------------------------------------------

// GELU's value, its derivative, and how far a kernel's FP32 arithmetic (activation.cuh) may be from them.
//
// In units of u = 2^-24, half a unit in the last place at most. An IEEE operation errs by u. The PTX ISA allows
// ex2.approx.f32 2 ulp from the correctly rounded result, and div.approx.f32 2 ulp too where 2^-126 <= |b| <= 2^126:
// 2.5 ulp from the exact one, so 5u. (The host errs less: 3e-7 is 5.03u for exp2_fast, but its division is exact to u.)
//   exponent   x (k + c x x): two constants, three products and a sum of two terms of one sign: 5u of it.
//   e          2^exponent, so 5u |ln e| from the exponent, and 5u.
//   gate       1 / (1 + e): an error of e weighs e / (1 + e) = 1 - gate; the sum errs by u, the division by 5u.
//   gelu       one product more.
//   derivative gate + x gate (1 - gate) slope: the gate's error times d/dgate = 1 + x slope (1 - 2 gate); 4u of the
//              slope, u of 1 - gate, three products: 8u of the second term; u of the sum.
// All to first order in u: the rest is 1e-5 of it. kVanishing covers what is flushed to zero: results below 2^-126, and
// div.approx.f32 where 1 + e is above 2^126.
constexpr double kUnit = 0x1p-24, kVanishing = 0x1p-115;

struct Gelu {
    double value, derivative;
    double value_bound, derivative_bound;

    explicit Gelu(double x);
};

// How many roundings a value of a column can meet on its way into the sum (column_sums.cuh): a thread's rows, at most
// 20 for the shapes that are tried; those that lie side by side in a block, 256 by 2048 / C; at most 9 parts. Zeros
// cost nothing.
inline int column_additions(int N, int C) { return std::min(N, 32 + std::max(8, 2048 / C)); }

// ---- the rest ------------------------------------------------------------------------------------------------------

struct CrossEntropy {
    std::vector<double> losses, gradient;
};
// logits (rows, padded_V) in FP64; targets below 0 are ignored. The losses leave out z-loss and label smoothing,
// the gradient has them.
CrossEntropy cross_entropy(std::vector<double> logits, const std::vector<int>& targets, int V, int padded_V,
                           double dloss, const LogitShaping& shaping = {});
// Of losses, relative to |loss| + 1. Of gradients, relative to each value, down to 1e-6 of the largest, before the
// rounding to Real: in units of u = 2^-24: 3u |x - max| from the exponent, 14 or less above that floor; 5u for
// ex2.approx.f32 (2 ulp from correctly rounded, says the PTX ISA), as much for the sum's terms; some 50u for its
// additions: 6e-6.
constexpr double kLossError = 2e-6, kLogitGradientError = 1e-5, kLogitGradientFloor = 1e-6;
// On top of both errors where logits are capped: a capped one errs by 10u of the cap (classifier.cu: the tanh by 8u,
// then two roundings), and stands beside the largest, which does, too. A gradient has that error twice, of its own
// exponential and of the sum.
constexpr double soft_cap_error(double cap) { return 2 * 10 * 0x1p-24 * cap; }

// Gradients on top of what dwte and dwpe hold.
struct EmbeddingGradient {
    std::vector<double> dwte, dwpe;
};
EmbeddingGradient embedding_gradient(const std::vector<float>& dwte, const std::vector<float>& dwpe,
                                     const std::vector<int>& tokens, const std::vector<double>& dout, int T, int C,
                                     const std::vector<int>& documents = {});

constexpr double kEmbeddingSumError = 2e-6;  // relative to |sum| + what its terms may have in common

std::vector<double> column_sums(const std::vector<float>& x, int C);
constexpr double kColumnSumError = 1e-6;  // relative to |sum| + 1 + the mean of its terms times their number

struct AdamW {
    std::vector<double> master, m, v;
};
// PyTorch's formula. Errors of FP32 arithmetic: relative to |value| + a floor of 1e-3 (master), 1e-2 (m) and 1e-6 (v).
AdamW adamw(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& v,
            const std::vector<float>& grad, size_t decay_count, const AdamWConfig& config, const StepState& state);
constexpr double kAdamWError = 3e-7, kMasterFloor = 1e-3, kFirstMomentFloor = 1e-2, kSecondMomentFloor = 1e-6;

struct Updated {
    std::vector<double> master, m;
};
// Lion, arXiv 2302.06675, and torch.optim.SGD's formula with decoupled decay. Errors as AdamW's, but for SGD's moment,
// whose terms may cancel: relative to |value| + 1 where neither is above 1.
Updated lion(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& grad,
             size_t decay_count, const LionConfig& config, const StepState& state);
Updated sgd(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& grad,
            size_t decay_count, const SgdConfig& config, const StepState& state);
constexpr double kSumMomentFloor = 1;

}  // namespace llmc::reference
