// Deliberate races, each with its corrected kernel. A ThreadSanitizer build reports every race with its kernel and
// line, and nothing for the corrected kernels. Other builds expose most races by thread order and NaN poison.
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"
#include "test/device/host/changed_settings.h"
#include "test/device/host/child.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kThreads = 128, kBlocks = 4;

// Threads read data that a thread of another warp wrote, which needs a barrier in between.
template <bool correct>
__global__ void read_after_write_kernel(int* out) {
    LLMC_SHARED(int, tile, [kThreads]);
    const int t = static_cast<int>(threadIdx.x);
    tile[t] = t;
    if (correct) __syncthreads();
    out[blockIdx.x * kThreads + threadIdx.x] = tile[t ^ 33];
}

// The next round overwrites data that a slower thread has yet to read, which needs a second barrier.
template <bool correct>
__global__ void write_after_read_kernel(int* out) {
    LLMC_SHARED(int, tile, [kThreads]);
    const int t = static_cast<int>(threadIdx.x);
    int sum = 0;
    for (int round = 0; round < 4; round++) {
        tile[t] = t + round * 1000;
        __syncthreads();
        sum += tile[(t + 37) % kThreads];
        if (correct) __syncthreads();
    }
    out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

// The same within a warp: lanes do not run in lockstep, so it needs __syncwarp.
template <bool correct>
__global__ void warp_exchange_kernel(int* out) {
    LLMC_SHARED(int, tile, [kThreads]);
    const int t = static_cast<int>(threadIdx.x);
    tile[t] = t;
    if (correct) __syncwarp();
    out[blockIdx.x * kThreads + threadIdx.x] = tile[t ^ 3];
}

// Half warps synchronise separately, at different times. The broken kernel reads from the other half.
template <bool correct>
__global__ void half_warp_kernel(int* out) {
    LLMC_SHARED(int, tile, [kThreads]);
    const int t = static_cast<int>(threadIdx.x);
    const unsigned mask = t & 16 ? 0xffff0000u : 0x0000ffffu;
    int value = t;
    for (int round = 0; round < 3; round++) {
        tile[t] = value;
        __syncwarp(mask);
        value = tile[correct ? t ^ 5 : t ^ 21];
        __syncwarp(mask);
    }
    out[blockIdx.x * kThreads + threadIdx.x] = value;
}

// Each lane waits for its own copies. A neighbour's copies are only visible after a barrier.
template <bool correct>
__global__ void async_copy_kernel(int* out, const int* in) {
    LLMC_SHARED(int, tile, [kThreads * 4]);
    cp_async16(tile + threadIdx.x * 4, in + threadIdx.x * 4);
    cp_async_commit();
    cp_async_wait<0>();
    if (correct) __syncthreads();
    out[blockIdx.x * kThreads + threadIdx.x] = tile[(kThreads - 1 - threadIdx.x) * 4];
}

// Blocks are unordered, so an accumulation across them needs an atomic operation.
template <bool correct>
__global__ void accumulate_kernel(int* out) {
    if (blockIdx.x == 0) out[1 + threadIdx.x] = 0;
    if (threadIdx.x != 0) return;
    if (correct)
        atomicAdd(out, 1);
    else
        out[0] += 1;
}

// ... and any of them may be the last to write.
template <bool correct>
__global__ void last_writer_kernel(int* out) {
    if (blockIdx.x == 0) out[1 + threadIdx.x] = 0;
    if (threadIdx.x != 0) return;
    if (correct)
        atomicMax(out, static_cast<int>(blockIdx.x));
    else
        out[0] = static_cast<int>(blockIdx.x);
}

__global__ void block_order_kernel(int* out) {
    if (threadIdx.x == 0) out[1 + atomicAdd(out, 1)] = static_cast<int>(blockIdx.x);
}

// Ends with an error while threads wait in a shuffle and at a barrier.
__global__ void failing_kernel(int* out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
    __syncthreads();
}

using Results = std::vector<int>;

template <auto kernel>
Results run_kernel() {
    DeviceArray<int> memory(Results(kBlocks * kThreads, 0));
    launch<kernel>({kBlocks, kThreads, 0, test_stream()}, inout(memory));
    return memory.download();
}

template <bool correct>
Results run_async_copy() {
    Results input(kThreads * 4);
    for (size_t i = 0; i < input.size(); i++) input[i] = static_cast<int>(i);
    DeviceArray<int> memory(Results(kBlocks * kThreads, 0)), source(input);
    launch<async_copy_kernel<correct>>({kBlocks, kThreads, 0, test_stream()}, inout(memory), in(source));
    return memory.download();
}

template <class F>
Results per_thread(F value) {
    Results results;
    for (int i = 0; i < kBlocks * kThreads; i++) results.push_back(value(i % kThreads));
    return results;
}
Results only_first(int value) {
    Results results(kBlocks * kThreads, 0);
    results[0] = value;
    return results;
}

struct Race {
    const char* kernel;
    Results (*broken)();
    Results (*correct)();
    Results expected;
    bool shows_in_results;  // in some thread order
};

const std::vector<Race>& races() {
    static const std::vector<Race> list = {
        {"read_after_write_kernel", run_kernel<read_after_write_kernel<false>>,
         run_kernel<read_after_write_kernel<true>>, per_thread([](int t) { return t ^ 33; }), true},
        {"write_after_read_kernel", run_kernel<write_after_read_kernel<false>>,
         run_kernel<write_after_read_kernel<true>>, per_thread([](int t) { return 4 * ((t + 37) % kThreads) + 6000; }),
         true},
        {"warp_exchange_kernel", run_kernel<warp_exchange_kernel<false>>, run_kernel<warp_exchange_kernel<true>>,
         per_thread([](int t) { return t ^ 3; }), true},
        {"half_warp_kernel", run_kernel<half_warp_kernel<false>>, run_kernel<half_warp_kernel<true>>,
         per_thread([](int t) { return t ^ 5; }), true},
        {"async_copy_kernel", run_async_copy<false>, run_async_copy<true>,
         per_thread([](int t) { return (kThreads - 1 - t) * 4; }), true},
        {"accumulate_kernel", run_kernel<accumulate_kernel<false>>, run_kernel<accumulate_kernel<true>>,
         only_first(kBlocks), false},
        {"last_writer_kernel", run_kernel<last_writer_kernel<false>>, run_kernel<last_writer_kernel<true>>,
         only_first(kBlocks - 1), true},
    };
    return list;
}

// The number of thread orders, of three, that give a wrong result.
int wrong_orders(Results (*run)(), const Results& expected) {
    const ChangedSettings keep;
    int wrong = 0;
    for (const host::Order order : {host::Order::ascending, host::Order::descending, host::Order::random}) {
        host::emulator_settings().order = order;
        wrong += run() != expected;
    }
    return wrong;
}

}  // namespace

TEST_CASE("races: corrected kernels give the same result in every order") {
    for (const Race& race : races()) CHECK_MESSAGE(wrong_orders(race.correct, race.expected) == 0, race.kernel);
}

TEST_CASE("races: blocks start in ascending, descending or random order, too") {
    constexpr int kMany = 10;
    test_stream();  // opening the device chooses the number of threads
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const ChangedSettings keep;
    std::vector<Results> orders;
    for (const host::Order order : {host::Order::ascending, host::Order::descending, host::Order::random}) {
        host::emulator_settings().order = order;
        DeviceArray<int> memory(Results(kMany + 1, 0));
        launch<block_order_kernel>({kMany, 32, 0, test_stream()}, inout(memory));
        const Results result = memory.download();
        orders.push_back({result.begin() + 1, result.end()});
    }
    omp_set_num_threads(threads);
    Results sorted(kMany);
    std::iota(sorted.begin(), sorted.end(), 0);
    CHECK(orders[0] == sorted);
    CHECK(orders[1] == Results(sorted.rbegin(), sorted.rend()));
    CHECK(orders[2] != orders[0]);
    CHECK(orders[2] != orders[1]);
    std::sort(orders[2].begin(), orders[2].end());
    CHECK(orders[2] == sorted);  // each exactly once
}

#if !LLMC_TSAN

TEST_CASE("races: thread order and poison expose a race") {
    for (const Race& race : races())
        if (race.shows_in_results) CHECK_MESSAGE(wrong_orders(race.broken, race.expected) > 0, race.kernel);
}

#else

// LLMC_TEST_RACE names the broken kernel to run, or "none" for all corrected ones.
TEST_CASE("child of races" * doctest::skip()) {
    const char* name = std::getenv("LLMC_TEST_RACE");
    REQUIRE(name);
    for (const Race& race : races()) {
        if (!std::strcmp(name, "none")) race.correct();
        if (!std::strcmp(name, race.kernel)) race.broken();
    }
    std::puts("child has run");
}

TEST_CASE("races: ThreadSanitizer reports every race, in ascending order too") {
    for (const Race& race : races()) {
        const ChildResult child =
            run_child("child of races", std::string("LLMC_ORDER=ascending LLMC_TEST_RACE=") + race.kernel);
        CAPTURE(race.kernel);
        CAPTURE(child.output);
        CHECK(child.exit_code == 66);
        CHECK(child.says("WARNING: ThreadSanitizer: data race"));
        CHECK(child.says(race.kernel));
        CHECK(child.says("races.cu:"));
        CHECK(!child.says("child has run"));
    }
}

TEST_CASE("races: ThreadSanitizer is silent about the corrected kernels") {
    for (const char* order : {"ascending", "descending", "random"}) {
        const ChildResult child = run_child("child of races", std::string("LLMC_TEST_RACE=none LLMC_ORDER=") + order);
        CAPTURE(child.output);
        CHECK(child.exit_code == 0);
        CHECK(child.says("child has run"));
        CHECK(!child.says("ThreadSanitizer"));
    }
}

// An error abandons GPU threads in the middle of the scheduler; later races must still be detected.
TEST_CASE("child of races: after errors" * doctest::skip()) {
    DeviceArray<int> memory(kBlocks * kThreads);
    for (int i = 0; i < 10; i++)
        CHECK_THROWS_AS(launch<failing_kernel>({kBlocks, kThreads, 0, test_stream()}, inout(memory)), Error);
    run_kernel<read_after_write_kernel<true>>();
    std::puts("silent so far");
    std::fflush(stdout);
    run_kernel<read_after_write_kernel<false>>();
}

TEST_CASE("races: the race detector survives errors of kernels") {
    const ChildResult child = run_child("child of races: after errors", "LLMC_ORDER=ascending LLMC_STREAMS=now");
    CAPTURE(child.output);
    CHECK(child.says("silent so far"));
    CHECK(child.exit_code == 66);
    CHECK(child.says("data race"));
}

#endif
