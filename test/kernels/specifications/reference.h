// FP64 references of kernels, each with the largest error of a correct kernel: norms, activations, sums of columns,
// and attention. Also seeded inputs. check_card and tests share them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/formats.cuh"
#include "llmc/kernels/attention.h"

namespace llmc::reference {

// One of x's neighbours in BF16, or x: the one away from 0 if the lost part of a step and `random` / 65536 make up one.
inline double stochastic_bf16(double x, uint32_t random) {
    if (x == 0 || !std::isfinite(x)) return x;
    const double step = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7), steps = std::fabs(x) / step;
    const double lost = steps - std::floor(steps);
    return std::copysign((std::floor(steps) + (lost + random / 65536.0 >= 1)) * step, x);
}

// ---- seeded inputs --------------------------------------------------------------------------------------------------

template <class Real>
std::vector<Real> random_normal(size_t count, float deviation, uint32_t seed, float mean = 0.0f);

// Values over 24 binary orders of magnitude. Some are zero, and some become zero in the cast to FP8.
template <class Real>
std::vector<Real> wide_values(size_t count, uint32_t seed);

// A matrix whose blocks are of very different sizes, some all zero.
template <class Real>
std::vector<Real> uneven_values(int R, int K, uint32_t seed);

inline std::vector<double> to_doubles(const std::vector<double>& values) { return values; }
template <class Real>
std::vector<double> to_doubles(const std::vector<Real>& values) {
    std::vector<double> result(values.size());
    for (size_t i = 0; i < values.size(); i++) result[i] = static_cast<double>(to_float(values[i]));
    return result;
}

template <class Real>
std::vector<float> to_floats(const std::vector<Real>& values) {
    std::vector<float> result(values.size());
    for (size_t i = 0; i < values.size(); i++) result[i] = to_float(values[i]);
    return result;
}

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
constexpr double kNormSumError = 2e-6;  // error of dweight and dshift, relative to |value| + 1 + N

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

// ---- attention ------------------------------------------------------------------------------------------------------
// Causal attention in FP64, forward and backward, with how far a correct kernel may be from it. For check_card and
// for tests.

struct AttentionShape {
    int B, T, NH, HD;
    int NKV = NH;
    int window = 0;                   // 0: all keys
    std::vector<int> documents = {};  // (B, T) as in llmc/kernels/attention.h; empty: none
    Kernels kernels = Kernels::portable;

    AttentionHeads heads() const { return {NH, NKV, HD, window, kernels}; }
    int first_key(int b, int query) const {
        const int of_window = window > 0 && query >= window ? query - window + 1 : 0;
        return documents.empty() ? of_window : std::max(of_window, documents[static_cast<size_t>(b) * T + query]);
    }
    // Scores are q . k times this factor.
    double factor() const { return 1 / std::sqrt(static_cast<double>(HD)); }
    int key_head(int h) const { return h / (NH / NKV); }  // the key head that query head h reads
    size_t rows() const { return static_cast<size_t>(B) * T * NH; }
    size_t elements() const { return rows() * HD; }
    size_t qkv_elements() const { return static_cast<size_t>(tokens()) * heads().qkv_width(); }
    int tokens() const { return B * T; }
    int width() const { return NH * HD; }
    int qkv_width() const { return heads().qkv_width(); }
    // The first index of a head's row in qkv (B, T, NH + 2 NKV, HD), out (B, T, NH, HD) and lse (B, NH, T). In qkv,
    // `which` selects queries (0), keys (1) or values (2).
    size_t qkv(int b, int t, int which, int h) const {
        const int head = which == 0 ? h : NH + (which - 1) * NKV + h;
        return ((static_cast<size_t>(b) * T + t) * (NH + 2 * NKV) + head) * HD;
    }
    size_t out(int b, int t, int h) const { return ((static_cast<size_t>(b) * T + t) * NH + h) * HD; }
    size_t row(int b, int t, int h) const { return (static_cast<size_t>(b) * NH + h) * T + t; }
    std::string text() const;  // "HD=64 NH=8 NKV=2 window=37 in documents B=2 T=277"
};
std::string text_of(const AttentionHeads& heads);  // "HD=64 NH=8 NKV=2", or without NKV if it equals NH

// An AttentionShape's documents: rows of T tokens, cut into documents of these lengths. The rest of a row is one more
// document.
std::vector<int> documents_of(int T, const std::vector<std::vector<int>>& rows);

// All arithmetic is in double, on the inputs as stored. Each result comes with the largest error of a correct kernel.
//
// u = 2^-8 is the relative error of rounding to bf16 (0 for the float kernels); r = 1e-5 is that of FP32 sums and
// exponentials:
//  - the forward rounds each P to bf16 and divides by the sum of the rounded ones:
//      |O error| <= (u + r) (sum P |V| + |O|), of which out alone adds u |O|;
//  - P^T dO rounds P, dV is rounded once: |dV error| <= (u + r) sum P |dO| + u |dV|;
//  - delta inherits O's error: |delta error| <= sum |dO| |O error|, and dS = P (dP - delta) is rounded;
//    |dQ error| <= scale sum (u |dS| + r P (sum |dO V| + |dO O|) + P |delta error|) |K| + u |dQ|, dK likewise.
// These hold for the worst case. Rounding errors are independent, so the norm of all errors together must be much
// smaller: one rounding of values with evenly spread mantissas has a relative root mean square of 0.425 u (uniform in
// +-u / m for a mantissa m in [1, 2), log-uniform).
struct Attention {
    std::vector<double> out, lse, delta, dqkv;
    std::vector<double> out_bound, out_sum_bound, delta_bound, dqkv_bound;  // out_sum_bound: of out + out_low
};

// u and r of the kernels for bf16 and for float.
constexpr double attention_rounding(bool bf16) { return bf16 ? 1.0 / 256 : 0.0; }
constexpr double attention_slack(bool bf16) { return bf16 ? 1e-5 : 5e-6; }
constexpr double kAttentionFloor = 1e-6;     // for results that are zero by cancellation
constexpr double kAttentionLseError = 1e-5;  // relative to |lse| + 1

// Limits on the norm of all errors, relative, for u: out + out_low has one rounding (of P), out and dV two, dQ and dK
// three and their sums cancel.
struct AttentionNorms {
    double out_sum, out, dv, dq_dk;
};
constexpr AttentionNorms attention_norms(double u) {
    const double rms = 0.5 * u + 1e-6;
    return {rms, 1.42 * rms, 1.42 * rms, 1.5 * rms};
}

Attention attention(const AttentionShape& s, const std::vector<double>& qkv, const std::vector<double>& dout, double u,
                    double slack);

// Raises `maxima` (NH) to the largest logit of each head. Each value that it raises gets a bound: `slack` times the sum
// of the magnitudes of the products that make up the logit.
void raise_to_logits(std::vector<double>& maxima, std::vector<double>& bounds, const AttentionShape& s,
                     const std::vector<double>& qkv, double slack);

// The part of dqkv that is dQ (0), dK (1) or dV (2).
std::vector<double> part_of_dqkv(const std::vector<double>& dqkv, const AttentionShape& s, int which);

}  // namespace llmc::reference
