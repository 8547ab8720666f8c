// Exact sums of products and how far a computed one may be from them.
#pragma once
#include <cmath>
#include <vector>

#include "test/kernel_test.h"

namespace llmc::test {

// (rows, columns) dot products of `terms` terms each, in FP64, and the sums of the terms' magnitudes: where terms
// cancel, a computed sum is as wrong as its terms are large, not as it is itself.
struct ExactSums {
    int terms;
    std::vector<double> values, magnitudes;

    // first (rows, inner) * second (columns, inner)^T * scale
    ExactSums(const std::vector<double>& first, const std::vector<double>& second, int inner, double scale = 1)
        : terms(inner) {
        const size_t n = static_cast<size_t>(inner);
        for (size_t r = 0; r < first.size(); r += n)
            for (size_t c = 0; c < second.size(); c += n) {
                double value = 0, magnitude = 0;
                for (size_t k = 0; k < n; k++) {
                    const double product = first[r + k] * second[c + k] * scale;
                    value += product;
                    magnitude += std::fabs(product);
                }
                values.push_back(value);
                magnitudes.push_back(magnitude);
            }
    }

    // The same with one bias a column.
    ExactSums plus(const std::vector<double>& bias) const {
        ExactSums result = *this;
        for (size_t i = 0; i < values.size(); i++) {
            result.values[i] += bias[i % bias.size()];
            result.magnitudes[i] += std::fabs(bias[i % bias.size()]);
        }
        return result;
    }
    // The same added onto itself.
    ExactSums twice() const {
        ExactSums result = *this;
        for (double& value : result.values) value *= 2;
        for (double& magnitude : result.magnitudes) magnitude *= 2;
        return result;
    }
};

// The largest |actual - exact| divided by the allowed error. Above 1 is wrong; NaN counts as infinite.
//
// However n products are summed, the result is within n u sum|a b| of the exact one (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1), u being what one addition may lose. Four operations more are allowed for: two
// scales, a bias, the sum so far. Then the result is rounded to Real, once: a second rounding would exceed the bound
// where the sum is exact to much more than Real's digits.
template <class Real>
double part_of_allowed(const std::vector<Real>& actual, const ExactSums& exact, double u) {
    if (actual.size() != exact.values.size()) return std::numeric_limits<double>::infinity();
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double sum_error = (exact.terms + 4) * u * exact.magnitudes[i];
        const double rounding =
            sizeof(Real) == 2 ? rounding_error<Real>() * (std::fabs(exact.values[i]) + sum_error) : 0;
        const double error = std::fabs(static_cast<double>(to_float(actual[i])) - exact.values[i]);
        const double part = error / (sum_error + rounding + 1e-37);  // all terms may be zero
        if (!(part <= worst)) worst = part == part ? part : std::numeric_limits<double>::infinity();
    }
    return worst;
}

// u of FP32 sums: they are rounded to nearest by a CPU, and may be cut off by a tensor core.
inline double fp32_unit() { return device_info().is_host ? 0x1p-24 : 0x1p-23; }
// u of sums of FP8 products: Hopper's tensor cores keep 13 bits behind the point of the largest term (DeepSeek-V3,
// arXiv 2412.19437).
inline double fp8_unit() { return device_info().is_host ? 0x1p-24 : 0x1p-13; }

// (columns, rows) of (rows, columns).
template <class T>
std::vector<T> transposed(const std::vector<T>& values, int rows, int columns) {
    std::vector<T> result(values.size());
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            result[static_cast<size_t>(c) * rows + r] = values[static_cast<size_t>(r) * columns + c];
    return result;
}

}  // namespace llmc::test
