// Seeded inputs for the card check and for tests. Real: float, bf16, e4m3 or e5m2.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/device/formats.cuh"

namespace llmc::reference {

template <class Real>
std::vector<Real> random_normal(size_t count, float deviation, uint32_t seed, float mean = 0.0f);

// Values over 24 binary orders of magnitude, some zero, some not to be told from zero after the cast.
template <class Real>
std::vector<Real> wide_values(size_t count, uint32_t seed);

// A matrix whose blocks are of very different sizes, some all zero.
template <class Real>
std::vector<Real> uneven_values(int R, int K, uint32_t seed);

template <class Real>
std::vector<double> to_doubles(const std::vector<Real>& values) {
    std::vector<double> result(values.size());
    for (size_t i = 0; i < values.size(); i++) result[i] = static_cast<double>(to_float(values[i]));
    return result;
}

template <class Real>
std::vector<float> to_floats(const std::vector<Real>& values) {
    std::vector<float> result(values.size());
    for (size_t i = 0; i < values.size(); i++) result[i] = to_float(values[i]);
    return result;
}

}  // namespace llmc::reference
