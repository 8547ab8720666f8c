// Tests of AdamW with moments in BF16: their rounding, the random bits that decide it, and an average without bias.
#include "llmc/kernels/update.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr AdamWConfig kConfig{0.9, 0.95, 1e-8, 0.1};
constexpr uint64_t kKey = 0x123456789abcdef0u;

StepState state_of(int64_t applied) {
    StepState state = {};
    state.applied = applied;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    state.bias_correction1 = state.bias_correction2 = 1.5f;
    return state;
}

// The tensors of one update. Moments are values that BF16 has, so that one start serves both formats.
template <class Real, class Moment>
struct Tensors {
    size_t n;
    DeviceArray<float> master, grad;
    DeviceArray<Moment> m, v;
    DeviceArray<Real> working;
    DeviceArray<StepState> state{std::vector<StepState>{state_of(3)}};
    DeviceArray<Fp8State> fp8{std::vector<Fp8State>(1)};

    explicit Tensors(size_t count)
        : n(count),
          master(random_normal<float>(n, 0.5f, 1)),
          grad(random_normal<float>(n, 0.2f, 4)),
          m(n),
          v(n),
          working(n) {
        set(random_normal<bf16>(n, 0.01f, 2), random_normal<bf16>(n, 1e-3f, 3, 1e-2f));
    }
    void set(const std::vector<bf16>& first, const std::vector<bf16>& second) {
        for (const auto& [array, values] : {std::pair{&m, &first}, {&v, &second}}) {
            std::vector<Moment> all;
            for (const bf16 value : *values) all.push_back(to<Moment>(std::fabs(to_float(value))));
            array->upload(all);
        }
    }
    void update(bool measured = false, uint64_t key = kKey, size_t place = 0) {
        adamw_update<Real>(master.get(), m.get(), v.get(), working, measured ? fp8.get() : nullptr, grad.get(), n,
                           n / 2, kConfig, state, test_stream(), {key, place});
    }
};

// The random bits of moment 0 (m) or 1 (v).
uint32_t bits_of(int moment, size_t place, int64_t applied = 3, uint64_t key = kKey) {
    return moment_bits(key, applied, place & ~size_t{1}) >> (place % 2 * 32 + static_cast<size_t>(moment) * 16) &
           0xffff;
}

}  // namespace

TEST_CASE_TEMPLATE("BF16 moments are FP32's, rounded, and the weights are those of FP32 moments", Real, float, bf16) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{8}, size_t{2048}, size_t{9101}})
        for (const bool measured : {false, true}) {
            CAPTURE(n);
            Tensors<Real, float> wide(n);
            Tensors<Real, bf16> narrow(n);
            wide.update(measured);
            narrow.update(measured, kKey, 4000);
            const std::vector<float> exact[2] = {wide.m.download(), wide.v.download()};
            const std::vector<bf16> found[2] = {narrow.m.download(), narrow.v.download()};
            CHECK(same_bits(narrow.master.download(), wide.master.download()));
            CHECK(same_bits(narrow.working.download(), wide.working.download()));
            CHECK(same_bits(narrow.fp8.download(), wide.fp8.download()));
            for (const int moment : {0, 1}) {
                size_t wrong = 0;
                for (size_t i = 0; i < n; i++)
                    wrong +=
                        static_cast<double>(to_float(found[moment][i])) !=
                        reference::stochastic_bf16(static_cast<double>(exact[moment][i]), bits_of(moment, 4000 + i));
                CHECK(wrong == 0);
            }
        }
}

TEST_CASE("BF16 moments refuse slices and places that divide a group") {
    Tensors<bf16, bf16> t(12);
    CHECK_THROWS_AS(adamw_update<bf16>(t.master + 4, t.m + 4, t.v + 4, t.working + 4, nullptr, t.grad + 4, 8, 0,
                                       kConfig, t.state, test_stream(), {kKey, 4}),
                    Error);  // 8 bytes
    CHECK_THROWS_AS(t.update(false, kKey, 2), Error);
}

// n draws of something between 0 and 1 have a mean within 6 sigma of what is expected, sigma <= 0.5 / sqrt(n): chance
// misses that once in 10^8, and these seeds stay as they are.
bool is_mean(double sum, double expected, double n) { return std::fabs(sum - expected) < 3 * std::sqrt(n); }

TEST_CASE("BF16 moments keep their mean, whatever part of a step is lost") {
    constexpr int kBins = 16;
    const size_t n = 4096;
    Tensors<float, float> wide(n);
    wide.update();
    const std::vector<float> exact[2] = {wide.m.download(), wide.v.download()};
    double sums[2][kBins] = {}, expected[2][kBins] = {}, counts[2][kBins] = {};
    for (uint64_t key = 0; key < 16; key++) {
        Tensors<float, bf16> narrow(n);
        narrow.update(false, key);
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

// v = 1.5 with g^2 = 1.45: a step goes by 0.0025, less than half of BF16's 2^-7 there, so that rounding to nearest
// would leave it where it is. On average it follows FP32's: each step's rounding errs by at most 2^-7, with variance of
// at most a quarter of its square, and 0.95 of that remains a step later.
TEST_CASE("v in BF16 moves by less than its format has") {
    const size_t n = 4096;
    const int steps = 60;
    Tensors<float, bf16> t(n);
    const bf16 start = to_bf16(1.5f);
    t.set(std::vector<bf16>(n, start), std::vector<bf16>(n, start));
    t.grad.upload(std::vector<float>(n, 4 * std::sqrt(1.45f)));  // grad_scale is 1/4
    for (int step = 1; step <= steps; step++) {
        t.state.upload({state_of(step)});
        t.update();
    }
    double mean = 0;
    const std::vector<bf16> v = t.v.download();
    for (size_t i = 0; i < n; i++) mean += static_cast<double>(to_float(v[i])) / n;
    const double expected = 1.45 + 0.05 * std::pow(0.95, steps);
    const double sigma = 0.5 * 0x1p-7 / std::sqrt((1 - 0.95 * 0.95) * n);
    CHECK(to_float(to_bf16(0.95f * 1.5f + 0.05f * 1.45f)) == 1.5f);
    CHECK(std::fabs(mean - expected) < 6 * sigma);
    CHECK(6 * sigma < (1.5 - expected) / 20);
}
