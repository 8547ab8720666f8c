// Fills arrays with seeded values of each type.
// build: optimized
#include "llmc/check/random_values.h"

#include <cmath>
#include <random>

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

#define LLMC_INSTANTIATE(Real)                                                \
    template std::vector<Real> random_normal(size_t, float, uint32_t, float); \
    template std::vector<Real> wide_values(size_t, uint32_t);                 \
    template std::vector<Real> uneven_values(int, int, uint32_t);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)
LLMC_INSTANTIATE(e4m3)
LLMC_INSTANTIATE(e5m2)
#undef LLMC_INSTANTIATE

}  // namespace llmc::reference
