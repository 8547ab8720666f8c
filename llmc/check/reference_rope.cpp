// RoPE and QK-norm in FP64 (reference_rope.h).
// build: optimized
#include "llmc/check/reference_rope.h"

#include <algorithm>
#include <cmath>

#include "llmc/check/reference_rms.h"

namespace llmc::reference {

void RopeRows::rotate(double* head, double* magnitude, int position, bool back) const {
    const size_t half = static_cast<size_t>(heads.HD / 2);
    for (size_t i = 0; i < half; i++) {
        const size_t at = static_cast<size_t>(position) * half + i;
        const double c = static_cast<double>(table.cos[at]), sine = static_cast<double>(table.sin[at]);
        const double s = back ? -sine : sine, x = head[i], y = head[i + half];
        head[i] = x * c - y * s;
        head[i + half] = y * c + x * s;
        magnitude[i] = std::fabs(x * c) + std::fabs(y * s);
        magnitude[i + half] = std::fabs(y * c) + std::fabs(x * s);
    }
}

static void scale(std::vector<double>& values, double factor) {
    for (double& value : values) value *= factor;
}

Rotated rope(const RopeRows& rows, const std::vector<double>& qkv, bool back) {
    Rotated r{qkv, std::vector<double>(qkv.size())};
    rows.each_head(qkv.size(),
                   [&](int, size_t at, int position) { rows.rotate(&r.values[at], &r.bounds[at], position, back); });
    scale(r.bounds, kRotationError);
    return r;
}

Rotated qk_norm_rope(const RopeRows& rows, const std::vector<double>& qkv, const QkNormGains& gains, double eps) {
    const int HD = rows.heads.HD;
    Rotated r{qkv, std::vector<double>(qkv.size())};
    rows.each_head(qkv.size(), [&](int side, size_t at, int position) {
        const std::vector<double> head(&qkv[at], &qkv[at] + HD);
        const auto normed = rms_rows(head, rms_rstd(head, 1, HD, eps), gains[static_cast<size_t>(side)], HD);
        std::copy(normed.begin(), normed.end(), &r.values[at]);
        rows.rotate(&r.values[at], &r.bounds[at], position, false);
    });
    scale(r.bounds, kQkNormError);
    return r;
}

QkNormGradient qk_norm_rope_gradient(const RopeRows& rows, const std::vector<double>& qkv,
                                     const std::vector<double>& dout, const QkNormGains& gains, double eps) {
    const int HD = rows.heads.HD;
    const size_t columns = static_cast<size_t>(HD);
    QkNormGradient r{{dout, std::vector<double>(dout.size())}, {}, {}};
    for (auto* sums : {&r.dgains, &r.dgains_bounds}) sums->fill(std::vector<double>(columns));
    rows.each_head(qkv.size(), [&](int side, size_t at, int position) {
        const std::vector<double>& gain = gains[static_cast<size_t>(side)];
        std::vector<double>&dgain = r.dgains[static_cast<size_t>(side)],
        &dgain_size = r.dgains_bounds[static_cast<size_t>(side)], terms(columns);
        rows.rotate(&r.dqkv.values[at], terms.data(), position, true);
        const std::vector<double> head(&qkv[at], &qkv[at] + HD), d(&r.dqkv.values[at], &r.dqkv.values[at] + HD);
        const auto rstd = rms_rstd(head, 1, HD, eps);
        const RmsGradient gradient = rms_gradient(head, d, rstd, gain, HD);
        double largest = 0;
        for (size_t c = 0; c < columns; c++) {
            largest = std::max(largest, std::fabs(d[c] * (gain.empty() ? 1.0 : gain[c])));
            dgain[c] += gradient.dweight[c];
            dgain_size[c] += (std::fabs(d[c]) + terms[c]) * std::fabs(head[c] * rstd[0]);
        }
        std::copy(gradient.dinp.begin(), gradient.dinp.end(), &r.dqkv.values[at]);
        // dx = rstd (g - norm mean(g norm)): |norm| <= sqrt(HD), and the mean is at most the largest |g|.
        for (size_t c = 0; c < columns; c++)
            r.dqkv.bounds[at + c] = rstd[0] * largest * (1 + std::fabs(head[c] * rstd[0]));
    });
    scale(r.dqkv.bounds, kQkNormError);
    for (auto& sizes : r.dgains_bounds) scale(sizes, kQkGainError);
    return r;
}

}  // namespace llmc::reference
