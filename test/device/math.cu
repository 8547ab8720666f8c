// Fast math of kernels against libm in double: error bounds over dense sweeps, and special values, on the device and,
// for functions callable there, on the host.
#include "llmc/device/math.cuh"

#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"

using namespace llmc;
using namespace llmc::test;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kPoints = size_t{1} << 14;
#else
constexpr size_t kPoints = size_t{1} << 21;
#endif

enum Function { exp2_function, exp_function, reciprocal_sqrt_function };

LLMC_HD float evaluate(int function, float x) {
    return function == exp2_function ? exp2_fast(x) : function == exp_function ? exp_fast(x) : reciprocal_sqrt(x);
}

__global__ void evaluate_kernel(float* out, const float* in, int function, int n) {
    const int begin = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
    for (int i = begin; i < begin + 8 && i < n; i++) out[i] = evaluate(function, in[i]);
}

std::vector<float> on_device(int function, const std::vector<float>& x) {
    DeviceArray<float> from(x), to(x.size());
    launch<evaluate_kernel>({static_cast<unsigned>((x.size() + 2047) / 2048), 256, 0, test_stream()}, out(to), in(from),
                            function, static_cast<int>(x.size()));
    return to.download();
}
std::vector<float> on_host(int function, const std::vector<float>& x) {
    std::vector<float> result(x.size());
    for (size_t i = 0; i < x.size(); i++) result[i] = evaluate(function, x[i]);
    return result;
}

std::vector<float> evenly_spread(double from, double to) {
    std::vector<float> x(kPoints);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = static_cast<float>(from + (to - from) * static_cast<double>(i) / static_cast<double>(kPoints - 1));
    return x;
}
// Magnitudes from 2^-126 to 2^126, both signs.
std::vector<float> all_magnitudes() {
    std::vector<float> x(kPoints);
    const uint32_t step = static_cast<uint32_t>((uint64_t{253} << 23) / (kPoints / 2));
    for (size_t i = 0; i < x.size(); i++)
        x[i] = float_from_bits((1u << 23) + static_cast<uint32_t>(i / 2) * step + (i % 2 ? 0x80000000u : 0));
    return x;
}

// The largest |f(x) - exact(x)| / scale(x); infinite if anything is NaN.
template <class Exact, class Scale>
double worst_error(const std::vector<float>& x, const std::vector<float>& y, Exact exact, Scale scale) {
    double worst = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const double point = static_cast<double>(x[i]);
        const double error = std::fabs(static_cast<double>(y[i]) - exact(point)) / scale(point);
        if (!(error <= worst)) worst = error == error ? error : HUGE_VAL;
    }
    return worst;
}

const auto kPlaces = {on_device, on_host};

}  // namespace

TEST_CASE("math: exp2_fast is within 3e-7 of 2^x over its whole range") {
    for (const auto& place : kPlaces) {
        const auto error = [&](const std::vector<float>& x) {
            return worst_error(
                x, place(exp2_function, x), [](double v) { return std::exp2(v); },
                [](double v) { return std::exp2(v); });
        };
        CHECK(error(evenly_spread(-126, 127.9999)) < 3e-7);
        CHECK(error(evenly_spread(-2, 2)) < 3e-7);
        CHECK(error(evenly_spread(127, 127.99999)) < 3e-7);
        std::vector<float> small = all_magnitudes();
        std::erase_if(small, [](float v) { return std::fabs(v) > 1; });
        CHECK(error(small) < 3e-7);
    }
}

TEST_CASE("math: exp2_fast at its ends") {
    const std::vector<float> x = {0.0f,    -0.0f,  128.0f,    1e30f, INFINITY, -127.0f,
                                  -150.0f, -1e30f, -INFINITY, NAN,   -126.0f};
    for (const auto& place : kPlaces) {
        const std::vector<float> y = place(exp2_function, x);
        CHECK(y[0] == 1);
        CHECK(y[1] == 1);
        for (size_t i : {2, 3, 4}) CHECK(y[i] == INFINITY);
        for (size_t i : {5, 6, 7, 8}) CHECK(y[i] == 0);  // results are never subnormal
        CHECK(y[9] != y[9]);
        CHECK(y[10] == std::ldexp(1.0f, -126));
    }
}

TEST_CASE("math: exp_fast adds the rounding error of its argument") {
    for (const auto& place : kPlaces) {
        const std::vector<float> x = evenly_spread(-87, 88);
        CHECK(worst_error(
                  x, place(exp_function, x), [](double v) { return std::exp(v); },
                  [](double v) { return std::exp(v) * (3e-7 + 1.2e-7 * std::fabs(v)); }) < 1);
        const std::vector<float> ends = place(exp_function, {0.0f, -INFINITY, INFINITY, -200.0f, NAN});
        CHECK(ends[0] == 1);
        CHECK(ends[1] == 0);
        CHECK(ends[2] == INFINITY);
        CHECK(ends[3] == 0);
        CHECK(ends[4] != ends[4]);
    }
}

TEST_CASE("math: reciprocal_sqrt is within 3e-7") {
    std::vector<float> x = all_magnitudes();
    for (float& v : x) v = std::fabs(v);
    for (const auto& place : kPlaces)
        CHECK(worst_error(
                  x, place(reciprocal_sqrt_function, x), [](double v) { return 1 / std::sqrt(v); },
                  [](double v) { return 1 / std::sqrt(v); }) < 3e-7);
}

TEST_CASE("math: minimum, maximum, absolute value, finiteness, division rounded up") {
    CHECK(max_float(1, 2) == 2);
    CHECK(max_float(-1, -2) == -1);
    CHECK(max_float(-INFINITY, 3) == 3);
    CHECK(abs_float(-3) == 3);
    CHECK(float_bits(abs_float(-0.0f)) == 0);
    CHECK(abs_float(-INFINITY) == INFINITY);
    for (const float finite : {0.0f, -1.0f, 3.4e38f, 1e-45f}) CHECK(is_finite(finite));
    for (const float not_finite : {INFINITY, -INFINITY, NAN, -NAN}) CHECK(!is_finite(not_finite));
    CHECK(div_up(0, 4) == 0);
    CHECK(div_up(1, 4) == 1);
    CHECK(div_up(4, 4) == 1);
    CHECK(div_up(5, 4) == 2);
    CHECK(div_up(size_t{1} << 40, size_t{3}) == 366503875926u);
}
