// Kurtosis, differences and alignment (llmc/kernels/outliers.h) in FP64. For the card check and for tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/check/compare.h"

namespace llmc::reference {

// n, the sum of x^2, the sum of x^4. n terms of one sign in FP64 in any order: at most n roundings of each.
inline Bounded moments(const std::vector<double>& x) {
    const double n = static_cast<double>(x.size());
    std::vector<double> sums = {n, 0, 0};
    for (const double value : x) sums[1] += value * value, sums[2] += value * value * value * value;
    return Bounded(sums, 2 * (n + 8) * 0x1p-53, 0);
}

// n, the sum of (actual - expected)^2, the sum of expected^2: differences may round, before they are squared.
inline Bounded differences(const std::vector<double>& actual, const std::vector<double>& expected) {
    const double n = static_cast<double>(expected.size());
    std::vector<double> sums = {n, 0, 0};
    for (size_t i = 0; i < expected.size(); i++) {
        const double difference = actual[i] - expected[i];
        sums[1] += difference * difference, sums[2] += expected[i] * expected[i];
    }
    return Bounded(sums, 2 * (n + 8) * 0x1p-53, 0);
}

// Mean and largest of |cos(gate, up)|, weight (2F, C). A lane adds C / 32 products and a few more (8 at a time), then
// come 5 sums of two: so many roundings u of a dot product are at most so many u |gate| |up|, and of the norms as much
// again; u each of two roots, a product and a quotient.
inline Bounded alignment(const std::vector<double>& weight, size_t F, size_t C) {
    double mean = 0, largest = 0;
    for (size_t row = 0; row < F; row++) {
        double dot = 0, gates = 0, ups = 0;
        for (size_t c = 0; c < C; c++) {
            const double gate = weight[row * C + c], up = weight[(F + row) * C + c];
            dot += gate * up, gates += gate * gate, ups += up * up;
        }
        const double cosine = gates * ups > 0 ? std::fabs(dot) / std::sqrt(gates) / std::sqrt(ups) : 0;
        mean += cosine / static_cast<double>(F);
        largest = std::max(largest, cosine);
    }
    const double roundings = static_cast<double>(C) / 32 + 8 + 5;
    return Bounded({mean, largest}, (2 * roundings + 8) * 0x1p-24, 1);
}

}  // namespace llmc::reference
