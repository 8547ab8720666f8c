// The factors of --fp8-smooth (llmc/kernels/outliers.h), channel by channel. For the card check and for tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/kernels/outliers.h"

namespace llmc::reference {

// Of one layer; `before` where no channel has an amax.
inline std::vector<float> smoothing(const std::vector<float>& amax, const std::vector<float>& before) {
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
