// cp.async: arrival of the data, zero fill, and a two-stage pipeline like that of kernels.
#include "llmc/device/async_copy.cuh"

#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Three groups of one 16-byte copy per thread. After wait<1> the first two have arrived, after wait<0> all.
__global__ void groups_kernel(uint32_t* out, const uint32_t* in) {
    LLMC_SHARED(uint32_t, tile, [3 * 64 * 4]);
    const int t = static_cast<int>(threadIdx.x);
    for (int group = 0; group < 3; group++) {
        cp_async16(tile + (group * 64 + t) * 4, in + (group * 64 + t) * 4);
        cp_async_commit();
    }
    cp_async_wait<1>();
    __syncthreads();
    const int other = 63 - t;  // data copied by another thread
    for (int i = 0; i < 4; i++) {
        out[t * 4 + i] = tile[other * 4 + i];
        out[(64 + t) * 4 + i] = tile[(64 + other) * 4 + i];
    }
    cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; i++) out[(128 + t) * 4 + i] = tile[(128 + other) * 4 + i];
}

// Invalid copies write zeros over the old contents and do not read their source.
__global__ void zero_fill_kernel(uint32_t* out, const uint32_t* in, int valid_threads) {
    LLMC_SHARED(uint32_t, tile, [64 * 4]);
    const int t = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 4; i++) tile[t * 4 + i] = 0xdeadbeef;
    cp_async16(tile + t * 4, in + (t < valid_threads ? t * 4 : 0), t < valid_threads);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; i++) out[t * 4 + i] = tile[t * 4 + i];
}

// A group may contain several copies, an empty group counts as a group, and uncommitted copies are not waited for.
__global__ void several_copies_kernel(uint32_t* out, const uint32_t* in) {
    LLMC_SHARED(uint32_t, tile, [32 * 8]);
    const int t = static_cast<int>(threadIdx.x);
    cp_async16(tile + t * 8, in + t * 8);
    cp_async16(tile + t * 8 + 4, in + t * 8 + 4);
    cp_async_commit();
    cp_async_commit();  // empty
    cp_async_wait<1>();
    __syncwarp();
    for (int i = 0; i < 8; i++) out[t * 8 + i] = tile[(31 - t) * 8 + i];
}

// Sums `tiles` tiles of 256 words, with the next tile in flight, like a kernel's main loop.
__global__ void pipeline_kernel(uint32_t* out, const uint32_t* in, int tiles) {
    LLMC_SHARED(uint32_t, stages, [2][256]);
    const int t = static_cast<int>(threadIdx.x);
    const auto load = [&](int tile) {
        cp_async16(&stages[tile % 2][t * 4], in + tile * 256 + t * 4);
        cp_async_commit();
    };
    uint32_t sums[4] = {};
    load(0);
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            load(tile + 1);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        LLMC_UNROLL
        for (int i = 0; i < 4; i++)
            sums[i] += stages[tile % 2][(t * 4 + i + 100) % 256] * static_cast<uint32_t>(tile + 1);
        __syncthreads();
    }
    LLMC_UNROLL
    for (int i = 0; i < 4; i++) out[t * 4 + i] = sums[i];
}

std::vector<uint32_t> counting(size_t n) {
    std::vector<uint32_t> values(n);
    for (size_t i = 0; i < n; i++) values[i] = static_cast<uint32_t>(i * 2654435761u);
    return values;
}

}  // namespace

TEST_CASE("cp.async: groups arrive in their order") {
    const std::vector<uint32_t> input = counting(3 * 64 * 4);
    DeviceArray<uint32_t> from(input), to(input.size());
    launch<groups_kernel>({1, 64, 0, test_stream()}, out(to), in(from));
    const std::vector<uint32_t> actual = to.download();
    int wrong = 0;
    for (size_t i = 0; i < input.size(); i++) {
        const size_t group = i / 256, thread = i / 4 % 64;
        wrong += actual[i] != input[group * 256 + (63 - thread) * 4 + i % 4];
    }
    CHECK(wrong == 0);
}

TEST_CASE("cp.async: invalid copies fill with zeros") {
    const std::vector<uint32_t> input = counting(64 * 4);
    DeviceArray<uint32_t> from(input), to(input.size());
    for (const int valid : {0, 1, 37, 64}) {
        launch<zero_fill_kernel>({1, 64, 0, test_stream()}, out(to), in(from), valid);
        const std::vector<uint32_t> actual = to.download();
        int wrong = 0;
        for (size_t i = 0; i < input.size(); i++)
            wrong += actual[i] != (i / 4 < static_cast<size_t>(valid) ? input[i] : 0);
        CHECK(wrong == 0);
    }
}

TEST_CASE("cp.async: groups of several copies and empty groups") {
    const std::vector<uint32_t> input = counting(32 * 8);
    DeviceArray<uint32_t> from(input), to(input.size());
    launch<several_copies_kernel>({1, 32, 0, test_stream()}, out(to), in(from));
    const std::vector<uint32_t> actual = to.download();
    int wrong = 0;
    for (size_t i = 0; i < input.size(); i++) wrong += actual[i] != input[(31 - i / 8) * 8 + i % 8];
    CHECK(wrong == 0);
}

TEST_CASE("cp.async: a two-stage pipeline") {
    for (const int tiles : {1, 2, 3, 8}) {
        const std::vector<uint32_t> input = counting(static_cast<size_t>(tiles) * 256);
        DeviceArray<uint32_t> from(input), to(256);
        launch<pipeline_kernel>({1, 64, 0, test_stream()}, out(to), in(from), tiles);
        const std::vector<uint32_t> actual = to.download();
        int wrong = 0;
        for (size_t i = 0; i < 256; i++) {
            uint32_t sum = 0;
            for (size_t tile = 0; tile < static_cast<size_t>(tiles); tile++)
                sum += input[tile * 256 + (i + 100) % 256] * static_cast<uint32_t>(tile + 1);
            wrong += actual[i] != sum;
        }
        CHECK(wrong == 0);
    }
}
