// Causal attention in FP64 (reference_attention.h).
// build: optimized
#include "llmc/check/reference_attention.h"

#include <algorithm>
#include <cmath>

namespace llmc::reference {
namespace {

double dot(const double* a, const double* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
double dot_magnitudes(const double* a, const double* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += std::fabs(a[i] * b[i]);
    return sum;
}

void reference_row(Attention& r, const AttentionShape& s, const std::vector<double>& qkv,
                   const std::vector<double>& dout, int b, int t, int h, double u, double slack) {
    const AttentionLayout at{s};
    const int HD = s.HD;
    const double scale = s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(HD));
    const int kv = at.key_head(h);
    const double *q = &qkv[at.qkv(b, t, 0, h)], *gradient = &dout[at.out(b, t, h)];
    const int begin = s.first_key(b, t);
    std::vector<double> p(static_cast<size_t>(t) + 1);
    double maximum = -1e300, sum = 0;
    for (int k = begin; k <= t; k++) maximum = std::max(maximum, p[k] = scale * dot(q, &qkv[at.qkv(b, k, 1, kv)], HD));
    for (int k = begin; k <= t; k++) sum += p[k] = std::exp(p[k] - maximum);
    for (double& x : p) x /= sum;
    r.lse[at.row(b, t, h)] = maximum + std::log(sum);

    double* out = &r.out[at.out(b, t, h)];
    std::vector<double> magnitude(HD);
    for (int k = begin; k <= t; k++) {
        const double* v = &qkv[at.qkv(b, k, 2, kv)];
        for (int c = 0; c < HD; c++) out[c] += p[k] * v[c], magnitude[c] += p[k] * std::fabs(v[c]);
    }
    double delta_error = 0, delta_magnitude = 0;
    for (int c = 0; c < HD; c++) {
        const double error = (u + slack) * (magnitude[c] + std::fabs(out[c]));
        r.out_sum_bound[at.out(b, t, h) + c] = error + u * u / 2 * std::fabs(out[c]);
        r.out_bound[at.out(b, t, h) + c] = error + u * std::fabs(out[c]);
        delta_error += std::fabs(gradient[c]) * (error + u * u / 2 * std::fabs(out[c]));
        delta_magnitude += std::fabs(gradient[c] * out[c]);
    }
    const double delta = r.delta[at.row(b, t, h)] = dot(gradient, out, HD);
    r.delta_bound[at.row(b, t, h)] = delta_error + slack * delta_magnitude;

    for (int k = begin; k <= t; k++) {
        const double *key = &qkv[at.qkv(b, k, 1, kv)], *v = &qkv[at.qkv(b, k, 2, kv)];
        const double ds = p[k] * (dot(gradient, v, HD) - delta) * scale;
        const double ds_error =
            u * std::fabs(ds) +
            scale * p[k] * (delta_error + slack * (dot_magnitudes(gradient, v, HD) + delta_magnitude));
        for (int c = 0; c < HD; c++) {
            r.dqkv[at.qkv(b, t, 0, h) + c] += ds * key[c];
            r.dqkv[at.qkv(b, k, 1, kv) + c] += ds * q[c];
            r.dqkv[at.qkv(b, k, 2, kv) + c] += p[k] * gradient[c];
            r.dqkv_bound[at.qkv(b, t, 0, h) + c] += ds_error * std::fabs(key[c]);
            r.dqkv_bound[at.qkv(b, k, 1, kv) + c] += ds_error * std::fabs(q[c]);
            r.dqkv_bound[at.qkv(b, k, 2, kv) + c] += (u + slack) * p[k] * std::fabs(gradient[c]);
        }
    }
}

}  // namespace

std::vector<int> documents_of(int T, const std::vector<std::vector<int>>& rows) {
    std::vector<int> documents;
    for (const std::vector<int>& lengths : rows) {
        const size_t end = documents.size() + static_cast<size_t>(T);
        int begin = 0;
        for (const int length : lengths)
            documents.insert(documents.end(), static_cast<size_t>(length), begin), begin += length;
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

std::vector<double> part_of_dqkv(const std::vector<double>& dqkv, const AttentionShape& s, int which) {
    const size_t row = static_cast<size_t>(s.qkv_width()), first = AttentionLayout{s}.qkv(0, 0, which, 0);
    const size_t width = static_cast<size_t>((which == 0 ? s.NH : s.NKV) * s.HD);
    std::vector<double> result;
    for (size_t at = first; at < dqkv.size(); at += row)
        result.insert(result.end(), dqkv.begin() + at, dqkv.begin() + at + width);
    return result;
}

}  // namespace llmc::reference
