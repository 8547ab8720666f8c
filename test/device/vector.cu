// load8 and store8: the bits that arrive, at every alignment that is allowed, and no byte beyond them.
#include "llmc/device/vector.cuh"

#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kStep = 16 / sizeof(float);  // floats between two allowed addresses

template <class From, class To>
__global__ void copy8_kernel(To* out, const From* in, int out_offset, int in_offset) {
    float values[8];
    load8(in + in_offset + threadIdx.x * 8, values);
    store8(out + out_offset + threadIdx.x * 8, values);
}

template <class T>
uint32_t bits_of(T value) {
    if constexpr (sizeof(T) == 4)
        return float_bits(value);
    else
        return value.bits;
}

// Copies 32 x 8 values at odd offsets; everything around the copy must keep its poison.
template <class From, class To>
int wrong_copies() {
    constexpr int kThreads = 32, n = kThreads * 8, kMargin = 32;
    int wrong = 0;
    for (const int out_offset : {0, 8, static_cast<int>(16 / sizeof(To))})
        for (const int in_offset : {0, 8, static_cast<int>(16 / sizeof(From))}) {
            std::vector<From> input = random_normal<From>(n + kMargin, 3, 7);
            input[static_cast<size_t>(in_offset)] = to<From>(INFINITY);
            input[static_cast<size_t>(in_offset) + 1] = to<From>(1e-40f);  // subnormal
            input[static_cast<size_t>(in_offset) + 2] = to<From>(-0.0f);
            DeviceArray<From> from(input);
            DeviceArray<To> target(n + kMargin);
            const std::vector<To> before = target.download();
            launch<copy8_kernel<From, To>>({1, kThreads, 0, test_stream()},
                                           {inout(target.get(), n + kMargin), in(from.get(), n + kMargin)},
                                           target.get(), from.get(), out_offset, in_offset);
            const std::vector<To> actual = target.download();
            for (int i = 0; i < n + kMargin; i++) {
                const size_t at = static_cast<size_t>(i);
                const bool written = i >= out_offset && i < out_offset + n;
                const To expected =
                    written ? to<To>(to_float(input[static_cast<size_t>(i - out_offset + in_offset)])) : before[at];
                wrong += bits_of(actual[at]) != bits_of(expected);
            }
        }
    return wrong;
}

}  // namespace

TEST_CASE("vector: eight values at a time, in and out, for every pair of types") {
    CHECK(wrong_copies<float, float>() == 0);
    CHECK(wrong_copies<bf16, bf16>() == 0);
    CHECK(wrong_copies<bf16, float>() == 0);
    CHECK(wrong_copies<float, bf16>() == 0);
}

TEST_CASE("vector: load8 and store8 serve host code too") {
    alignas(16) bf16 halves[16];
    alignas(16) float floats[16];
    for (int i = 0; i < 16; i++) {
        halves[i] = to_bf16(static_cast<float>(i) + 0.5f);
        floats[i] = static_cast<float>(i) * 3;
    }
    float values[8];
    load8(halves + 8, values);
    for (int i = 0; i < 8; i++) CHECK(values[i] == static_cast<float>(i) + 8.5f);
    load8(floats + kStep, values);
    for (int i = 0; i < 8; i++) CHECK(values[i] == static_cast<float>(i + kStep) * 3);
    store8(halves, values);
    for (int i = 0; i < 8; i++) CHECK(to_float(halves[i]) == static_cast<float>(i + kStep) * 3);
    store8(floats + 8, values);
    for (int i = 0; i < 8; i++) CHECK(floats[i + 8] == static_cast<float>(i + kStep) * 3);
}
