// What GELU's kernels, plain and fused, should compute before anything is rounded or quantized.
#pragma once
#include <vector>

#include "llmc/check/compare.h"
#include "llmc/check/reference_rows.h"

namespace llmc::check {

template <class Real>
Bounded gelu_values(const std::vector<Real>& inp) {
    Bounded result(0);
    for (const Real x : inp) {
        const reference::Gelu gelu(static_cast<double>(to_float(x)));
        result.push_back(gelu.value, gelu.value_bound);
    }
    return result;
}

template <class Real>
Bounded gelu_gradients(const std::vector<Real>& dout, const std::vector<Real>& inp) {
    Bounded result(0);
    for (size_t i = 0; i < inp.size(); i++) {
        const reference::Gelu gelu(static_cast<double>(to_float(inp[i])));
        const double g = static_cast<double>(to_float(dout[i])), value = g * gelu.derivative;
        result.push_back(value, std::fabs(g) * gelu.derivative_bound + reference::kUnit * std::fabs(value));
    }
    return result;
}

// Sums of columns over N rows, on top of `before`.
inline Bounded gelu_bias_gradient(const Bounded& gradient, int N, const std::vector<float>& before) {
    const size_t C = before.size();
    const int additions = reference::column_additions(N, static_cast<int>(C));
    Bounded sums(C);
    for (size_t i = 0; i < gradient.values.size(); i++) {
        sums.values[i % C] += gradient.values[i];
        sums.bounds[i % C] += gradient.bounds[i] + additions * reference::kUnit * std::fabs(gradient.values[i]);
    }
    for (size_t c = 0; c < C; c++) {
        sums.values[c] += static_cast<double>(before[c]);
        sums.bounds[c] += 1.01 * reference::kUnit * std::fabs(sums.values[c]);
    }
    return sums;
}

}  // namespace llmc::check
