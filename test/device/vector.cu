// load8 and store8: the right bits at every allowed alignment, and no byte beyond them. Fours and Eights: the same, and
// a warp's accesses cover whole sectors without bank conflicts.
#include "llmc/device/vector.cuh"

#include <set>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"

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

// Copies 32 x 8 values at odd offsets; the poison around the copy must stay.
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
            launch<copy8_kernel<From, To>>({1, kThreads, 0, test_stream()}, inout(target), in(from), out_offset,
                                           in_offset);
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

namespace {

template <class From, class To>
__global__ void copy_fours_kernel(To* out, const From* in) {
    const int first = first_of_fours(static_cast<int>(threadIdx.x));
    float values[8];
    load_fours(in + first, values);
    store_fours(out + first, values);
}

template <class From, class To>
int wrong_fours() {
    constexpr int kThreads = 64, n = kThreads * 8, kMargin = 16;
    const std::vector<From> input = random_normal<From>(n, 3, 7);
    DeviceArray<From> from(input);
    DeviceArray<To> target(n + kMargin);
    const std::vector<To> before = target.download();
    launch<copy_fours_kernel<From, To>>({1, kThreads, 0, test_stream()}, inout(target), in(from));
    const std::vector<To> actual = target.download();
    int wrong = 0;
    for (size_t i = 0; i < actual.size(); i++)
        wrong += bits_of(actual[i]) != bits_of(i < n ? to<To>(to_float(input[i])) : before[i]);
    return wrong;
}

// The number of 32-byte sectors that a warp's request touches: `bytes` bytes from the element at place(lane).
template <class Place>
size_t sectors(Place place, size_t element, size_t bytes) {
    std::set<size_t> touched;
    for (int lane = 0; lane < 32; lane++)
        for (size_t byte = 0; byte < bytes; byte++)
            touched.insert((static_cast<size_t>(place(lane)) * element + byte) / 32);
    return touched.size();
}

__global__ void eights_kernel(float* loaded, float* in_order, const float* filled) {
    LLMC_SHARED(float, memory, [Eights<64>::size]);
    const Eights<64> eights{memory};
    const int t = static_cast<int>(threadIdx.x);
    for (int i = t; i < Eights<64>::size; i += 64) memory[i] = filled[i];
    __syncthreads();
    float values[8];
    eights.load(t, values);
    for (int i = 0; i < 8; i++) loaded[t * 8 + i] = values[i];
    __syncthreads();
    eights.store(t, values);
    __syncthreads();
    for (int i = 0; i < 8; i++) in_order[t * 8 + i] = eights.at(t * 8 + i);
}

}  // namespace

TEST_CASE("vector: fours, in and out, for every pair of types that is used") {
    CHECK(wrong_fours<float, float>() == 0);
    CHECK(wrong_fours<float, bf16>() == 0);
    CHECK(wrong_fours<bf16, float>() == 0);
    CHECK(wrong_fours<bf16, bf16>() == 0);
}

TEST_CASE("vector: a warp's fours are whole sectors; eight floats per lane use half of each") {
    for (const int half : {0, 4}) {
        const auto fours = [half](int lane) { return first_of_fours(lane) + place_in_fours(half); };
        CHECK(sectors(fours, 4, 16) == 16);
        CHECK(sectors(fours, 2, 8) == 8);  // bf16
        CHECK(sectors([half](int lane) { return lane * 8 + half; }, 4, 16) == 32);
    }
}

TEST_CASE("vector: Eights hold what they are given, without bank conflicts by owner or in order") {
    std::vector<float> filled(Eights<64>::size);
    for (size_t i = 0; i < filled.size(); i++) filled[i] = static_cast<float>(i);
    DeviceArray<float> from(filled), loaded(64 * 8), in_order(64 * 8);
    launch<eights_kernel>({1, 64, 0, test_stream()}, out(loaded), out(in_order), in(from));
    // The value of every float is its place in shared memory.
    const std::vector<float> places = loaded.download();
    CHECK(in_order.download() == places);
    CHECK(std::set<float>(places.begin(), places.end()).size() == places.size());
    const auto bank = [&](size_t i) { return static_cast<int>(places[i]) % 32; };
    for (size_t owner = 0; owner < 64; owner += 8)  // 16 bytes per lane: eight lanes at a time
        for (const size_t half : {0, 4}) {
            std::set<int> banks;
            for (size_t i = 0; i < 32; i++) banks.insert(bank((owner + i / 4) * 8 + half + i % 4));
            CHECK(banks.size() == 32);
        }
    for (size_t first = 0; first < places.size(); first += 32) {
        std::set<int> banks;
        for (size_t i = 0; i < 32; i++) banks.insert(bank(first + i));
        CHECK(banks.size() == 32);
    }
}

TEST_CASE("vector: load8 and store8 work in host code, too") {
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
