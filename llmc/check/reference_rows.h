// Norms, activations, sums of columns and smoothing factors in FP64, each with the largest error of a correct kernel.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace llmc::reference {

// Half a unit in the last place, relative: what one rounding to Real may cost.
template <class Real>
constexpr double rounding_error() {
    return sizeof(Real) == 2 ? 1.0 / 256 : 6e-8;
}

// ---- layer norm and RMS norm ---------------------------------------------------------------------------------------

// The statistics of each of N rows; RMS norm's mean is 0.
struct RowStatistics {
    std::vector<double> mean, rstd;
};
RowStatistics layernorm_statistics(const std::vector<double>& x, int N, int C);            // eps is 1e-5
RowStatistics rmsnorm_statistics(const std::vector<double>& x, int N, int C, double eps);  // 1 / sqrt(mean(x^2) + eps)

// The mean's error is relative to |mean| + 1. Of rstd: 2^-22.9 for rsqrt.approx.f32 (PTX ISA), and half the error of
// the sum of squares: at most 20 additions in a row and three roundings of a term, 2^-24 each. Together 1.0e-6.
constexpr double kMeanError = 1e-6, kRstdError = 2e-6;
// The error of FP32 arithmetic before the rounding to Real, relative to |value| + a floor for terms that cancel.
constexpr double kNormError = 5e-6, kNormedFloor = 0.5, kNormGradientFloor = 0.2;
constexpr double kNormSumError = 2e-6;  // of dweight and dshift, relative to |value| + 1 + N

// (x - mean) rstd weight + shift. An empty weight is 1, an empty shift 0.
std::vector<double> normed_rows(const std::vector<double>& x, const RowStatistics& statistics,
                                const std::vector<double>& weight, const std::vector<double>& shift);

struct NormGradient {
    std::vector<double> dinp, dweight, dshift;  // dinp without the residual's gradient
};
// `centered`: of layer norm, whose mean depends on x.
NormGradient norm_gradient(const std::vector<double>& x, const std::vector<double>& dout,
                           const std::vector<double>& weight, const RowStatistics& statistics, bool centered);

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

// ---- SwiGLU --------------------------------------------------------------------------------------------------------

// inp (N, 2F): rows of F of gate, then F of up; dout (N, F).
//
// Bounds of FP32 arithmetic (activation.cuh), in units of u = 2^-24, from the same sources as GELU's.
//   e           exp(-gate): 2u |gate| from the exponent (a product with a rounded constant), and 5u
//   sigmoid     1 / (1 + e): an error of e weighs 1 - sigmoid; the sum errs by u, the division by 5u
//   out         silu and up: two products more
//   dup         the same with dout in up's place
//   dgate       dout up (s + gate s (1 - s)): the error of s times its derivative 1 + gate (1 - 2s); u of 1 - s and two
//               products, 3u of the second term; u of the sum, 2u of the last two products
// Results below 2^-126 may be flushed, and a division by more than 2^126 may give 0.
struct Swiglu {
    std::vector<double> out, dinp, out_bound, dinp_bound;
};
Swiglu swiglu(const std::vector<double>& inp, const std::vector<double>& dout, int F);

// ---- sums of columns ------------------------------------------------------------------------------------------------

// How many roundings a value of a column can meet on its way into the sum (column_sums.cuh): a thread's rows, at most
// 20 for the shapes that are tried; those that lie side by side in a block, 256 by 2048 / C; at most 9 parts. Zeros
// cost nothing.
inline int column_additions(int N, int C) { return std::min(N, 32 + std::max(8, 2048 / C)); }

std::vector<double> column_sums(const std::vector<float>& x, int C);
constexpr double kColumnSumError = 1e-6;  // relative to |sum| + 1 + the mean of its terms times their number

// ---- factors of --fp8-smooth ---------------------------------------------------------------------------------------

// The smoothing factors of one layer, from the largest magnitude of each channel (llmc/kernels/outliers.h), or `before`
// if all magnitudes are 0.
std::vector<float> smoothing(const std::vector<float>& amax, const std::vector<float>& before);

}  // namespace llmc::reference
