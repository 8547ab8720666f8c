// Row kernels in FP64 (reference_rows.h).
// build: optimized
#include "llmc/check/reference_rows.h"

#include "llmc/kernels/outliers.h"

namespace llmc::reference {

static RowStatistics statistics_of(const std::vector<double>& x, int N, int C, bool centered, double eps) {
    RowStatistics s;
    for (int n = 0; n < N; n++) {
        const double* row = &x[size_t{1} * n * C];
        double mean = 0, variance = 0;
        for (int c = 0; c < C && centered; c++) mean += row[c] / C;
        for (int c = 0; c < C; c++) variance += (row[c] - mean) * (row[c] - mean) / C;
        s.mean.push_back(mean);
        s.rstd.push_back(1.0 / std::sqrt(variance + eps));
    }
    return s;
}
RowStatistics layernorm_statistics(const std::vector<double>& x, int N, int C) {
    return statistics_of(x, N, C, true, 1e-5);
}
RowStatistics rmsnorm_statistics(const std::vector<double>& x, int N, int C, double eps) {
    return statistics_of(x, N, C, false, eps);
}

std::vector<double> normed_rows(const std::vector<double>& x, const RowStatistics& s, const std::vector<double>& weight,
                                const std::vector<double>& shift) {
    const size_t C = x.size() / s.rstd.size();
    std::vector<double> y(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        y[i] = (x[i] - s.mean[i / C]) * s.rstd[i / C];
        if (!weight.empty()) y[i] *= weight[i % C];
        if (!shift.empty()) y[i] += shift[i % C];
    }
    return y;
}

NormGradient norm_gradient(const std::vector<double>& x, const std::vector<double>& dout,
                           const std::vector<double>& weight, const RowStatistics& s, bool centered) {
    const size_t C = x.size() / s.rstd.size();
    NormGradient g{std::vector<double>(x.size()), std::vector<double>(C), std::vector<double>(C)};
    for (size_t n = 0; n < s.rstd.size(); n++) {
        std::vector<double> norm(C), dnorm(C);
        double dnorm_mean = 0, product_mean = 0;
        for (size_t c = 0; c < C; c++) {
            const double d = dout[n * C + c];
            norm[c] = (x[n * C + c] - s.mean[n]) * s.rstd[n];
            dnorm[c] = weight.empty() ? d : d * weight[c];
            if (centered) dnorm_mean += dnorm[c] / static_cast<double>(C);
            product_mean += dnorm[c] * norm[c] / static_cast<double>(C);
            g.dweight[c] += d * norm[c];
            g.dshift[c] += d;
        }
        for (size_t c = 0; c < C; c++) g.dinp[n * C + c] = (dnorm[c] - dnorm_mean - norm[c] * product_mean) * s.rstd[n];
    }
    return g;
}

Gelu::Gelu(double x) {
    const double k = std::sqrt(2.0 / 3.14159265358979323846), log_e = -2.0 * k * (x + 0.044715 * x * x * x);
    const double e = std::exp(log_e), gate = 1.0 / (1.0 + e), other = 1.0 / (1.0 + 1.0 / e);  // 1 - gate
    const double slope = 2.0 * k * (1.0 + 3.0 * 0.044715 * x * x), bend = x * gate * other * slope;
    value = x * gate;
    derivative = gate + bend;
    const double gate_error = (other > 0 ? other * (5 * std::fabs(log_e) + 5) : 0.0) + 6;
    value_bound = 1.0001 * kUnit * std::fabs(value) * (gate_error + 1) + kVanishing;
    derivative_bound = 1.0001 * kUnit *
                           (gate * gate_error * std::fabs(1.0 + x * slope * (other - gate)) + 8 * std::fabs(bend) +
                            std::fabs(derivative)) +
                       kVanishing;
}

Swiglu swiglu(const std::vector<double>& inp, const std::vector<double>& dout, int F) {
    const size_t n = dout.size(), columns = static_cast<size_t>(F);
    Swiglu r{std::vector<double>(n), std::vector<double>(2 * n), std::vector<double>(n), std::vector<double>(2 * n)};
    for (size_t i = 0; i < n; i++) {
        const size_t at = i / columns * 2 * columns + i % columns;
        const double gate = inp[at], up = inp[at + columns], d = dout[i];
        const double s = 1.0 / (1.0 + std::exp(-gate)), other = 1.0 / (1.0 + std::exp(gate)), silu = gate * s;
        const double s_error = other * (2 * std::fabs(gate) + 5) + 6, bend = gate * s * other;
        r.out[i] = silu * up;
        r.dinp[at] = d * up * (s + bend);
        r.dinp[at + columns] = d * silu;
        const double unit = 1.0001 * kUnit, vanishing = kVanishing * (1 + std::fabs(gate));
        r.out_bound[i] = unit * std::fabs(r.out[i]) * (s_error + 2) + vanishing * (1 + std::fabs(up));
        r.dinp_bound[at] =
            unit * (std::fabs(d * up) * (s * s_error * std::fabs(1 + gate * (other - s)) + 3 * std::fabs(bend)) +
                    3 * std::fabs(r.dinp[at])) +
            vanishing * (1 + std::fabs(d * up));
        r.dinp_bound[at + columns] =
            unit * std::fabs(r.dinp[at + columns]) * (s_error + 2) + vanishing * (1 + std::fabs(d));
    }
    return r;
}

std::vector<double> column_sums(const std::vector<float>& x, int C) {
    std::vector<double> sums(static_cast<size_t>(C));
    for (size_t i = 0; i < x.size(); i++) sums[i % static_cast<size_t>(C)] += static_cast<double>(x[i]);
    return sums;
}

std::vector<float> smoothing(const std::vector<float>& amax, const std::vector<float>& before) {
    std::vector<int> exponents;
    for (const float a : amax)
        if (a > 0) exponents.push_back(std::ilogb(a));
    if (exponents.empty()) return before;
    std::sort(exponents.rbegin(), exponents.rend());
    const int largest = exponents.front(), middle = exponents[(exponents.size() + 1) / 2 - 1];
    std::vector<float> factors;
    for (const float a : amax) {
        const int distance = largest - std::max(a > 0 ? std::ilogb(a) : middle, middle);
        factors.push_back(std::ldexp(1.0f, -std::min(distance / 2, kMostSmoothing)));
    }
    return factors;
}

}  // namespace llmc::reference
