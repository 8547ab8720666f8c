// Exact sums of products and how far a computed one may be from them.
#pragma once
#include <cmath>
#include <vector>

#include "test/kernel_test.h"

namespace llmc::test {

// (rows, columns) dot products of `terms` terms each, in FP64, and the sums of the terms' magnitudes. If terms cancel,
// the error of a computed sum depends on their magnitudes, not on its own.
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
// In whatever order n products are summed, the result is within n u sum|a b| of the exact one (Higham, Accuracy and
// Stability of Numerical Algorithms, section 3.1), where u is the error of one addition. Four more operations are
// allowed: two scales, a bias, and the previous sum. Then the result is rounded to Real once. A second rounding would
// exceed the bound if the sum is exact to many more digits than Real has.
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

// u for FP32 sums: a CPU rounds to nearest, a tensor core may truncate.
inline double fp32_unit() { return device_info().is_host ? 0x1p-24 : 0x1p-23; }
// u for sums of FP8 products: Hopper's tensor cores keep 13 bits after the point of the largest term (DeepSeek-V3,
// arXiv 2412.19437).
inline double fp8_unit() { return device_info().is_host ? 0x1p-24 : 0x1p-13; }

// Transposes (rows, columns) to (columns, rows).
template <class T>
std::vector<T> transposed(const std::vector<T>& values, int rows, int columns) {
    std::vector<T> result(values.size());
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            result[static_cast<size_t>(c) * rows + r] = values[static_cast<size_t>(r) * columns + c];
    return result;
}

}  // namespace llmc::test
