// AdamW with moments in BF16: the random bits that decide their rounding, and averages without bias. The specification
// (optimizers.cpp) compares each rounded moment.
#include "llmc/kernels/update.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr AdamWConfig kConfig{0.9, 0.95, 1e-8, 0.1};
constexpr uint64_t kKey = 0x123456789abcdef0u;

StepState example_step() {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    state.bias_correction1 = state.bias_correction2 = 1.5f;
    return state;
}

// Positive numbers that BF16 has, in FP32 or BF16.
template <class Moment>
std::vector<Moment> moments(size_t n, float deviation, uint32_t seed, float mean) {
    std::vector<Moment> values;
    for (const bf16 value : random_normal<bf16>(n, deviation, seed, mean))
        values.push_back(to<Moment>(std::fabs(to_float(value))));
    return values;
}

// The tensors of one update. Both formats of moments start from the same values.
template <class Moment>
struct Tensors {
    size_t n;
    DeviceArray<float> master, grad, working;
    DeviceArray<Moment> m, v;
    DeviceArray<StepState> state{std::vector<StepState>{example_step()}};

    explicit Tensors(size_t count)
        : n(count),
          master(random_normal<float>(n, 0.5f, 1)),
          grad(random_normal<float>(n, 0.2f, 4)),
          working(n),
          m(moments<Moment>(n, 0.01f, 2, 0)),
          v(moments<Moment>(n, 1e-3f, 3, 1e-2f)) {}
    void update(uint64_t key = kKey, size_t place = 0) {
        adamw_update<float>({master.get(), m.get(), v.get(), working, grad.get(), {key, place}}, nullptr, n, n / 2,
                            kConfig, state, test_stream());
    }
};

// The random bits of moment 0 (m) or 1 (v).
uint32_t bits_of(int moment, size_t place, int64_t applied = 3, uint64_t key = kKey) {
    return moment_bits(key, applied, place & ~size_t{1}) >> (place % 2 * 32 + static_cast<size_t>(moment) * 16) &
           0xffff;
}

}  // namespace

TEST_CASE("BF16 moments refuse slices and places that divide a group") {
    Tensors<bf16> t(12);
    CHECK_THROWS_AS(adamw_update<float>({t.master + 4, t.m + 4, t.v + 4, t.working + 4, t.grad + 4, {kKey, 4}}, nullptr,
                                        8, 0, kConfig, t.state, test_stream()),
                    Error);  // 8 bytes
    CHECK_THROWS_AS(t.update(kKey, 2), Error);
}

// n draws of something between 0 and 1 have a mean within 6 sigma of what is expected, sigma <= 0.5 / sqrt(n): chance
// misses that once in 10^8, and these seeds stay as they are.
bool is_mean(double sum, double expected, double n) { return std::fabs(sum - expected) < 3 * std::sqrt(n); }

TEST_CASE("BF16 moments keep their mean, whatever part of a step is lost") {
    constexpr int kBins = 16;
    const size_t n = 4096;
    Tensors<float> wide(n);
    wide.update();
    const std::vector<float> exact[2] = {wide.m.download(), wide.v.download()};
    double sums[2][kBins] = {}, expected[2][kBins] = {}, counts[2][kBins] = {};
    for (uint64_t key = 0; key < 16; key++) {
        Tensors<bf16> narrow(n);
        narrow.update(key);
        const std::vector<bf16> found[2] = {narrow.m.download(), narrow.v.download()};
        for (const int moment : {0, 1})
            for (size_t i = 0; i < n; i++) {
                const uint32_t bits = float_bits(exact[moment][i]), lost = bits & 0xffff, bin = lost * kBins >> 16;
                const uint32_t up = found[moment][i].bits - (bits >> 16);  // 1: away from 0
                REQUIRE(up <= 1);
                sums[moment][bin] += up, expected[moment][bin] += lost / 65536.0, counts[moment][bin]++;
            }
    }
    for (const auto moment : {0, 1})
        for (int bin = 0; bin < kBins; bin++) {
            CAPTURE(bin);
            REQUIRE(counts[moment][bin] > 1000);
            CHECK(is_mean(sums[moment][bin], expected[moment][bin], counts[moment][bin]));
        }
}

TEST_CASE("random bits of moments, elements, steps and keys have nothing in common") {
    const auto uniform = [](uint32_t bits) { return (bits + 0.5) / 65536 - 0.5; };
    const size_t n = 20000;
    double mean = 0, products[5] = {};
    for (size_t i = 0; i < n; i++) {
        const double x = uniform(bits_of(0, i));
        const double others[5] = {uniform(bits_of(1, i)), uniform(bits_of(0, i + 1)), uniform(bits_of(0, i + 2)),
                                  uniform(bits_of(0, i, 4)), uniform(bits_of(0, i, 3, kKey + 1))};
        mean += x;
        for (int k = 0; k < 5; k++) products[k] += x * others[k];
    }
    const double sigma = std::sqrt(n / 12.0);
    CHECK(std::fabs(mean) < 6 * sigma);
    for (const double product : products) CHECK(std::fabs(product) < 6 * sigma / std::sqrt(12.0));
}
