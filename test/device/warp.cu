// Warp, quad and block reductions, bit for bit, and CUDA's own shuffles, votes and atomics by their definition in the
// CUDA programming guide.
#include "llmc/device/warp.cuh"

#include <algorithm>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The butterfly over groups of `lanes` neighbours, in the order documented in warp.cuh.
template <class Op>
std::vector<float> butterfly(std::vector<float> values, size_t lanes, Op op) {
    for (size_t offset = lanes / 2; offset > 0; offset /= 2) {
        std::vector<float> next(values.size());
        for (size_t i = 0; i < values.size(); i++) next[i] = op(values[i], values[i ^ offset]);
        values = next;
    }
    return values;
}
float add(float a, float b) { return a + b; }
float larger(float a, float b) { return std::max(a, b); }

std::vector<float> slice(const std::vector<float>& values, size_t which, size_t stride) {
    std::vector<float> result;
    for (size_t i = which; i < values.size(); i += stride) result.push_back(values[i]);
    return result;
}

constexpr int kThreads = 96;  // three warps, to show that they do not mix
constexpr int kResults = 9;

__global__ void reductions_kernel(float* out, const float* in) {
    const int t = static_cast<int>(threadIdx.x);
    float each[3] = {in[t * 3], in[t * 3 + 1], in[t * 3 + 2]};
    float quad_sums[2] = {in[t * 3], in[t * 3 + 1]}, quad_maxima[1] = {in[t * 3]};
    out[t * kResults + 0] = warp_sum(in[t * 3]);
    out[t * kResults + 1] = warp_max(in[t * 3]);
    warp_sum_each(each);
    for (int i = 0; i < 3; i++) out[t * kResults + 2 + i] = each[i];
    quad_sum_each(quad_sums);
    quad_max_each(quad_maxima);
    out[t * kResults + 5] = quad_sums[0];
    out[t * kResults + 6] = quad_sums[1];
    out[t * kResults + 7] = quad_maxima[0];
    out[t * kResults + 8] = warp_max(-1.0f - static_cast<float>(t));  // all negative
}

// Three consecutive maxima with the same scratch memory.
__global__ void block_kernel(float* out, const float* in) {
    LLMC_SHARED(float, scratch, [32]);
    const int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
    in += blockIdx.x * blockDim.x;
    out += blockIdx.x * blockDim.x * 3;
    out[t] = block_max(-in[t], scratch);
    out[n + t] = block_max(in[t] - 100.0f, scratch);
    out[2 * n + t] = block_max(2.0f * in[t], scratch);
}

}  // namespace

TEST_CASE("warp: reductions have the butterfly's bits on every lane") {
    const std::vector<float> input = random_normal<float>(kThreads * 3, 1, 1);
    DeviceArray<float> from(input), to(kThreads * kResults);
    launch<reductions_kernel>({1, kThreads, 0, test_stream()}, out(to), in(from));
    const std::vector<float> actual = to.download();
    const auto check = [&](size_t result, size_t component, size_t lanes, float (*op)(float, float)) {
        CAPTURE(result);
        CHECK(slice(actual, result, kResults) == butterfly(slice(input, component, 3), lanes, op));
    };
    check(0, 0, 32, add);
    check(1, 0, 32, larger);
    for (size_t i = 0; i < 3; i++) check(2 + i, i, 32, add);
    check(5, 0, 4, add);
    check(6, 1, 4, add);
    check(7, 0, 4, larger);
    for (size_t t = 0; t < kThreads; t++) CHECK(actual[t * kResults + 8] == -1.0f - static_cast<float>(t / 32 * 32));
}

TEST_CASE("warp: block reductions, of one to 32 warps, back to back") {
    for (const int threads : {32, 64, 96, 256, 1024}) {
        CAPTURE(threads);
        const size_t n = static_cast<size_t>(threads), blocks = 2;
        std::vector<float> input(n * blocks);
        for (size_t i = 0; i < input.size(); i++)
            input[i] = static_cast<float>(static_cast<int>(i * 7919 % 2039) - 1019);
        DeviceArray<float> from(input), to(n * blocks * 3);
        launch<block_kernel>({blocks, static_cast<unsigned>(threads), 0, test_stream()}, out(to), in(from));
        const std::vector<float> actual = to.download();
        int wrong = 0;
        for (size_t b = 0; b < blocks; b++) {
            float maximum = -1e30f, minimum = 1e30f;
            for (size_t i = 0; i < n; i++) {
                minimum = std::min(minimum, input[b * n + i]);
                maximum = std::max(maximum, input[b * n + i]);
            }
            for (size_t t = 0; t < n; t++) {
                wrong += actual[b * n * 3 + t] != -minimum;
                wrong += actual[b * n * 3 + n + t] != maximum - 100.0f;
                wrong += actual[b * n * 3 + 2 * n + t] != 2 * maximum;
            }
        }
        CHECK(wrong == 0);
    }
}

// ---- CUDA's own -----------------------------------------------------------------------------------------------------

namespace {

constexpr int kShuffles = 6;

__global__ void shuffles_kernel(int* out) {
    const int t = static_cast<int>(threadIdx.x), lane = t % 32, value = 1000 + t;
    int* mine = out + t * kShuffles;
    mine[0] = __shfl_sync(~0u, value, 5);
    mine[1] = __shfl_sync(~0u, value, lane * 3 + 1);  // beyond 31: modulo 32
    mine[2] = __shfl_sync(~0u, value, 2, 8);          // lane 2 of each segment of 8
    mine[3] = __shfl_xor_sync(~0u, value, 9);
    // A later segment gives the lane's own value; an earlier one is readable.
    mine[4] = __shfl_xor_sync(~0u, value, 16, 16);
    mine[5] = -1;
    if (lane < 8) mine[5] = __shfl_xor_sync(0xffu, value, 3);  // a part of the warp
}

int expected_shuffle(int which, int t) {
    const int lane = t % 32, value = 1000 + t, first = value - lane;
    switch (which) {
        case 0:
            return first + 5;
        case 1:
            return first + (lane * 3 + 1) % 32;
        case 2:
            return first + lane / 8 * 8 + 2;
        case 3:
            return first + (lane ^ 9);
        case 4:
            return lane < 16 ? value : value - 16;
        default:
            return lane < 8 ? first + (lane ^ 3) : -1;
    }
}

__global__ void atomics_kernel(int* integers, unsigned* bits, float* floats) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(integers + 0, i);
    atomicMax(integers + 1, i * 37 % 1009);
    atomicMin(integers + 2, 500 - i * 37 % 1009);
    atomicOr(bits, 1u << (i % 32));
    atomicMax(bits + 1, float_bits(static_cast<float>(i)));  // non-negative floats compare as integers
    atomicAdd(floats, 0.5f);
}

}  // namespace

TEST_CASE("warp: shuffles") {
    constexpr int kLanes = 64;
    DeviceArray<int> to(kLanes * kShuffles);
    launch<shuffles_kernel>({1, kLanes, 0, test_stream()}, out(to));
    const std::vector<int> actual = to.download();
    for (int which = 0; which < kShuffles; which++) {
        int wrong = 0;
        for (int t = 0; t < kLanes; t++)
            wrong += actual[static_cast<size_t>(t * kShuffles + which)] != expected_shuffle(which, t);
        CAPTURE(which);
        CHECK(wrong == 0);
    }
}

TEST_CASE("warp: atomics") {
    constexpr int kBlocks = 8, kTotal = kBlocks * 64;
    DeviceArray<int> integers(std::vector<int>{0, -1, 10000});
    DeviceArray<unsigned> bits(std::vector<unsigned>{0, 0});
    DeviceArray<float> floats(std::vector<float>{1});
    launch<atomics_kernel>({kBlocks, 64, 0, test_stream()}, inout(integers), inout(bits), inout(floats));
    const std::vector<int> actual = integers.download();
    int largest = 0;
    for (int i = 0; i < kTotal; i++) largest = std::max(largest, i * 37 % 1009);
    CHECK(actual[0] == kTotal * (kTotal - 1) / 2);
    CHECK(actual[1] == largest);
    CHECK(actual[2] == 500 - largest);
    CHECK(bits.download() == std::vector<unsigned>{~0u, float_bits(static_cast<float>(kTotal - 1))});
    CHECK(floats.download()[0] == 1 + 0.5f * kTotal);
}
