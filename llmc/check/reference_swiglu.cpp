// SwiGLU in FP64 (reference_swiglu.h).
// build: optimized
#include "llmc/check/reference_swiglu.h"

#include <cmath>

#include "llmc/check/reference_rows.h"

namespace llmc::reference {

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

}  // namespace llmc::reference
