// FP64 references and seeded inputs (reference.h).
// build: optimized
#include "test/kernels/specifications/reference.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "llmc/base/error.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::reference {

template <class Real>
std::vector<Real> random_normal(size_t count, float deviation, uint32_t seed, float mean) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<Real> values(count);
    for (Real& v : values) v = to<Real>(normal(engine));
    return values;
}

template <class Real>
std::vector<Real> wide_values(size_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<Real> values(count);
    for (Real& v : values) {
        const int exponent = static_cast<int>(engine() % 25) - 18;
        v = to<Real>(engine() % 16 == 0 ? (engine() % 2 ? 0.0f : -0.0f) : std::ldexp(normal(engine), exponent));
    }
    return values;
}

template <class Real>
std::vector<Real> uneven_values(int R, int K, uint32_t seed) {
    std::vector<Real> values = random_normal<Real>(static_cast<size_t>(R) * K, 1.0f, seed);
    std::mt19937 engine(seed + 1);
    std::vector<int> row_power(static_cast<size_t>(R)), column_power(static_cast<size_t>(K));
    for (int& p : row_power) p = static_cast<int>(engine() % 40) - 20;
    for (int& p : column_power) p = static_cast<int>(engine() % 24) - 12;
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) {
            Real& v = values[static_cast<size_t>(r) * K + k];
            v = to<Real>(to_float(v) * std::ldexp(1.0f, row_power[r] + column_power[k]));
            if (r % 7 == 3 && k / 32 % 3 == 1) v = to<Real>(0.0f);
        }
    return values;
}

#define LLMC_INSTANTIATE_INPUTS(Real)      \
    LLMC_INSTANTIATE(random_normal<Real>); \
    LLMC_INSTANTIATE(wide_values<Real>);   \
    LLMC_INSTANTIATE(uneven_values<Real>);
LLMC_INSTANTIATE_INPUTS(float)
LLMC_INSTANTIATE_INPUTS(bf16)
LLMC_INSTANTIATE_INPUTS(e4m3)
LLMC_INSTANTIATE_INPUTS(e5m2)
#undef LLMC_INSTANTIATE_INPUTS

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

namespace {

double dot(const double* a, const double* b, int n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
double dot_magnitudes(const double* a, const double* b, int n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += std::fabs(a[i] * b[i]);
    return sum;
}

void reference_row(Attention& r, const AttentionShape& s, const std::vector<double>& qkv,
                   const std::vector<double>& dout, int b, int t, int h, double u, double slack) {
    const int HD = s.HD;
    const double scale = s.factor();
    const int kv = s.key_head(h);
    const double *q = &qkv[s.qkv(b, t, 0, h)], *gradient = &dout[s.out(b, t, h)];
    const int begin = s.first_key(b, t);
    std::vector<double> p(static_cast<size_t>(t) + 1);
    double maximum = -1e300, sum = 0;
    for (int k = begin; k <= t; k++) maximum = std::max(maximum, p[k] = scale * dot(q, &qkv[s.qkv(b, k, 1, kv)], HD));
    for (int k = begin; k <= t; k++) sum += p[k] = std::exp(p[k] - maximum);
    for (double& x : p) x /= sum;
    r.lse[s.row(b, t, h)] = maximum + std::log(sum);

    double* out = &r.out[s.out(b, t, h)];
    std::vector<double> magnitudes(HD);
    double* magnitude = magnitudes.data();
    for (int k = begin; k <= t; k++) {
        const double *v = &qkv[s.qkv(b, k, 2, kv)], weight = p[k];
#pragma omp simd
        for (int c = 0; c < HD; c++) {
            out[c] += weight * v[c];
            magnitude[c] += weight * std::fabs(v[c]);
        }
    }
    double delta_error = 0, delta_magnitude = 0;
    for (int c = 0; c < HD; c++) {
        const double error = (u + slack) * (magnitude[c] + std::fabs(out[c]));
        r.out_sum_bound[s.out(b, t, h) + c] = error + u * u / 2 * std::fabs(out[c]);
        r.out_bound[s.out(b, t, h) + c] = error + u * std::fabs(out[c]);
        delta_error += std::fabs(gradient[c]) * (error + u * u / 2 * std::fabs(out[c]));
        delta_magnitude += std::fabs(gradient[c] * out[c]);
    }
    const double delta = r.delta[s.row(b, t, h)] = dot(gradient, out, HD);
    r.delta_bound[s.row(b, t, h)] = delta_error + slack * delta_magnitude;

    double *dq = &r.dqkv[s.qkv(b, t, 0, h)], *dq_bound = &r.dqkv_bound[s.qkv(b, t, 0, h)];
    for (int k = begin; k <= t; k++) {
        const size_t at_key = s.qkv(b, k, 1, kv), at_value = s.qkv(b, k, 2, kv);
        const double *key = &qkv[at_key], *v = &qkv[at_value];
        double *dk = &r.dqkv[at_key], *dv = &r.dqkv[at_value];
        double *dk_bound = &r.dqkv_bound[at_key], *dv_bound = &r.dqkv_bound[at_value];
        const double ds = p[k] * (dot(gradient, v, HD) - delta) * scale;
        const double ds_error =
            u * std::fabs(ds) +
            scale * p[k] * (delta_error + slack * (dot_magnitudes(gradient, v, HD) + delta_magnitude));
        const double dv_error = (u + slack) * p[k], weight = p[k];
#pragma omp simd
        for (int c = 0; c < HD; c++) {
            dq[c] += ds * key[c];
            dk[c] += ds * q[c];
            dv[c] += weight * gradient[c];
            dq_bound[c] += ds_error * std::fabs(key[c]);
            dk_bound[c] += ds_error * std::fabs(q[c]);
            dv_bound[c] += dv_error * std::fabs(gradient[c]);
        }
    }
}

}  // namespace

std::string text_of(const AttentionHeads& heads) {
    const std::string text = fmt::format("HD={} NH={}", heads.HD, heads.NH);
    return heads.NKV < heads.NH ? fmt::format("{} NKV={}", text, heads.NKV) : text;
}

std::string AttentionShape::text() const {
    return text_of(heads()) + (window > 0 ? fmt::format(" window={}", window) : "") +
           (documents.empty() ? "" : " in documents") + fmt::format(" B={} T={}", B, T) +
           (kernels == Kernels::automatic ? " on Hopper" : "");
}

std::vector<int> documents_of(int T, const std::vector<std::vector<int>>& rows) {
    std::vector<int> documents;
    for (const std::vector<int>& lengths : rows) {
        const size_t end = documents.size() + static_cast<size_t>(T);
        int begin = 0;
        for (const int length : lengths) {
            documents.insert(documents.end(), length, begin);
            begin += length;
        }
        documents.resize(end, begin);
    }
    return documents;
}

Attention attention(const AttentionShape& s, const std::vector<double>& qkv, const std::vector<double>& dout, double u,
                    double slack) {
    Attention r;
    for (auto* x : {&r.out, &r.out_bound, &r.out_sum_bound}) x->assign(s.elements(), 0.0);
    for (auto* x : {&r.lse, &r.delta, &r.delta_bound}) x->assign(s.rows(), 0.0);
    for (auto* x : {&r.dqkv, &r.dqkv_bound}) x->assign(s.qkv_elements(), 0.0);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++) reference_row(r, s, qkv, dout, b, t, h, u, slack);
    for (size_t i = 0; i < r.dqkv.size(); i++) r.dqkv_bound[i] += (u + slack) * std::fabs(r.dqkv[i]);
    return r;
}

void raise_to_logits(std::vector<double>& maxima, std::vector<double>& bounds, const AttentionShape& s,
                     const std::vector<double>& qkv, double slack) {
    const double scale = s.factor();
    for (int h = 0; h < s.NH; h++) {
        const double before = maxima[h];
        double error = 0;
        for (int b = 0; b < s.B; b++)
            for (int t = 0; t < s.T; t++)
                for (int k = s.first_key(b, t); k <= t; k++) {
                    const double *q = &qkv[s.qkv(b, t, 0, h)], *key = &qkv[s.qkv(b, k, 1, s.key_head(h))];
                    maxima[h] = std::max(maxima[h], scale * dot(q, key, s.HD));
                    error = std::max(error, slack * scale * dot_magnitudes(q, key, s.HD));
                }
        if (maxima[h] > before) bounds[h] = error;
    }
}

std::vector<double> part_of_dqkv(const std::vector<double>& dqkv, const AttentionShape& s, int which) {
    const size_t row = static_cast<size_t>(s.qkv_width()), first = s.qkv(0, 0, which, 0);
    const size_t width = static_cast<size_t>((which == 0 ? s.NH : s.NKV) * s.HD);
    std::vector<double> result;
    for (size_t at = first; at < dqkv.size(); at += row)
        result.insert(result.end(), dqkv.begin() + at, dqkv.begin() + at + width);
    return result;
}

}  // namespace llmc::reference
