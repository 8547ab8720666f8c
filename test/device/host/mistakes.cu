// Tests of the tester: every kind of mistake in a kernel or its launch is reported, in every thread order, with a
// message that names the kernel, the thread, the place in the kernel and the launch. Afterwards the host device still
// works.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dev/emulator/executor.h"
#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"
#include "test/device/host/changed_settings.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr host::Order kOrders[] = {host::Order::ascending, host::Order::descending, host::Order::random};

// The error of a failing launch, or "" if it succeeds.
std::string message_of(const std::function<void()>& action) {
    return error_of([&] {
        action();
        synchronize_device();
    });
}

std::string at_line(int line) { return fmt::format("mistakes.cu:{}", line); }

// ---- a correct kernel, to see that the host device still works ------------------------------------------------------

__global__ void reverse_kernel(int* out) {
    LLMC_SHARED(int, tile, [64]);
    tile[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    const int sum = __shfl_xor_sync(~0u, 1, 16) + __shfl_sync(~0u, 1, 31);
    out[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x] + 100 * sum;
}

void check_still_works() {
    constexpr int kBlocks = 8;
    DeviceArray<int> out(kBlocks * 64);
    launch<reverse_kernel>({kBlocks, 64, 0, test_stream()}, inout(out));
    const std::vector<int> values = out.download();
    int wrong = 0;
    for (size_t i = 0; i < values.size(); i++) wrong += values[i] != 63 - static_cast<int>(i % 64) + 200;
    CHECK(wrong == 0);
}

// Launches `kernel` in every order. Each time the message must contain all `texts`, the kernel's name, the launch's
// place, and a thread unless the launch itself is refused. '|' separates alternatives, since the reported lane may
// depend on the order.
struct Shape {
    dim3 grid, block;
    size_t shared_bytes = 0;
    bool names_thread = true;
};

bool holds(const std::string& message, const std::string& alternatives) {
    for (size_t begin = 0; begin <= alternatives.size();) {
        const size_t end = std::min(alternatives.find('|', begin), alternatives.size());
        if (message.find(alternatives.substr(begin, end - begin)) != std::string::npos) return true;
        begin = end + 1;
    }
    return false;
}

constexpr int kLaunchLine = __LINE__ + 4;
template <auto kernel>
std::string message_of_launch(const Shape& shape) {
    DeviceArray<int> memory(4096);
    const LaunchConfig config(shape.grid, shape.block, shape.shared_bytes,
                              test_stream());  // the name of the launch in messages
    return message_of([&] { launch<kernel>(config, inout(memory)); });
}

void expect_message(std::string (*message_of_launch)(const Shape&), const Shape& shape, const char* name,
                    const std::vector<std::string>& texts) {
    const ChangedSettings keep;
    for (const host::Order order : kOrders) {
        host::emulator_settings().order = order;
        const std::string message = message_of_launch(shape);
        CAPTURE(message);
        for (const std::string& text : texts) CHECK_MESSAGE(holds(message, text), text);
        CHECK_MESSAGE(holds(message, name), name);
        CHECK_MESSAGE(holds(message, "launched at "), "launch");
        CHECK_MESSAGE(holds(message, at_line(kLaunchLine)), "line of the launch");
        if (shape.names_thread) {
            CHECK_MESSAGE(holds(message, "[thread ("), "thread");
            CHECK_MESSAGE(holds(message, ") of block ("), "block");
        }
        check_still_works();
    }
}

template <auto kernel>
void expect_report(const Shape& shape, const char* name, const std::vector<std::string>& texts) {
    expect_message(message_of_launch<kernel>, shape, name, texts);
}

// ---- barriers -------------------------------------------------------------------------------------------------------

constexpr int kPartialBarrierLine = __LINE__ + 2;
__global__ void some_threads_skip_barrier_kernel(int* out) {
    if (threadIdx.x < 60) __syncthreads();
    out[threadIdx.x] = 1;
}

constexpr int kExitBarrierLine = __LINE__ + 3;
__global__ void one_thread_exits_kernel(int* out) {
    if (threadIdx.x == 5) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

constexpr int kFirstBarrierLine = __LINE__ + 3;
__global__ void two_barriers_kernel(int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
        out[0] = 1;
    } else {
        __syncthreads();
        out[1] = 1;
    }
}

constexpr int kSyncWarpLine = __LINE__ + 2;
__global__ void lane_skips_syncwarp_kernel(int* out) {
    if (threadIdx.x % 32 != 3) __syncwarp();
    out[threadIdx.x] = 1;
}

// ---- shuffles -------------------------------------------------------------------------------------------------------

constexpr int kExitedLaneLine = __LINE__ + 3;
__global__ void shuffle_with_exited_lane_kernel(int* out) {
    if (threadIdx.x == 7) return;
    out[threadIdx.x] = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x), 1);
}

constexpr int kMissingLanesLine = __LINE__ + 3;
__global__ void shuffle_with_missing_lanes_kernel(int* out) {
    int value = 0;
    if (threadIdx.x % 32 < 16) value = __shfl_sync(~0u, 1, 1);
    __syncthreads();
    out[threadIdx.x] = value;
}

constexpr int kOddLanesLine = __LINE__ + 3;
__global__ void mismatched_shuffles_kernel(int* out) {
    if (threadIdx.x & 1)
        out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
    else
        out[threadIdx.x] = __shfl_sync(~0u, 1, 1);
}

__global__ void mismatched_masks_kernel(int* out) {
    const unsigned mask = threadIdx.x & 1 ? ~0u : 0x55555555u;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1, 0);
}

constexpr int kMaskLacksCallerLine = __LINE__ + 2;
__global__ void mask_lacks_caller_kernel(int* out) {
    __syncwarp(0x0000ffffu);
    __syncwarp();  // no thread has exited
    out[threadIdx.x] = 1;
}

constexpr int kSourceOutsideLine = __LINE__ + 2;
__global__ void source_outside_mask_kernel(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 16);
}

constexpr int kShortWarpLine = __LINE__ + 1;
__global__ void mask_beyond_short_warp_kernel(int* out) { out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1); }

constexpr int kReductionLine = __LINE__ + 2;
__global__ void half_warp_reduces_kernel(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = static_cast<int>(warp_sum(1.0f));
}

// ---- shared memory --------------------------------------------------------------------------------------------------

__global__ void dynamic_overrun_kernel(int* out) {
    LLMC_DYNAMIC_SHARED(int, memory);
    memory[threadIdx.x + 1] = 1;
    __syncthreads();
    out[threadIdx.x] = memory[threadIdx.x];
}

constexpr int kNoDynamicLine = __LINE__ + 2;
__global__ void no_dynamic_memory_kernel(int* out) {
    LLMC_DYNAMIC_SHARED(int, memory);
    out[0] = memory[0];
}

__global__ void static_overrun_kernel(int* out) {
    LLMC_SHARED(int, memory, [64]);
    int* p = memory;
    p[threadIdx.x == 63 ? 64 : threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = memory[0];
}

__global__ void static_underrun_kernel(int* out) {
    LLMC_SHARED(int, memory, [64]);
    int* p = memory;
    if (threadIdx.x == 0) p[-1] = 1;
    out[threadIdx.x] = static_cast<int>(threadIdx.x);
}

__global__ void static_too_big_kernel(int* out) {
    LLMC_SHARED(int, a, [8000]);
    LLMC_SHARED(int, b, [8000]);
    a[0] = b[0] = 1;
    out[0] = a[0];
}

__global__ void one_static_array_kernel(int* out) {
    LLMC_SHARED(int, a, [192]);
    a[threadIdx.x] = 1;
    out[threadIdx.x] = a[threadIdx.x];
}
__global__ void static_and_dynamic_too_big_kernel(int* out) {
    LLMC_SHARED(int, a, [8000]);
    a[0] = 1;
    out[0] = a[0];
}

__global__ void uninitialised_shared_kernel(float* out) {
    LLMC_SHARED(float, tile, [64]);
    LLMC_SHARED(bf16, halves, [64]);
    LLMC_SHARED(e4m3, bytes, [64]);
    LLMC_DYNAMIC_SHARED(float, memory);
    if (threadIdx.x % 2) tile[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
    out[64 + threadIdx.x] = memory[threadIdx.x];
    out[128 + threadIdx.x] = to_float(halves[threadIdx.x]);
    out[192 + threadIdx.x] = to_float(bytes[threadIdx.x]);
}

// ---- vector accesses and asynchronous copies ------------------------------------------------------------------------

__global__ void misaligned_load_kernel(int* out) {
    float values[8];
    load8(reinterpret_cast<const float*>(out + 1), values);
    out[0] = static_cast<int>(values[0]);
}

__global__ void misaligned_store_kernel(int* out) {
    float values[8] = {};
    store8(reinterpret_cast<bf16*>(out) + 4, values);
}

constexpr int kMisalignedCopyLine = __LINE__ + 3;
__global__ void misaligned_copy_kernel(int* out) {
    LLMC_SHARED(int, tile, [64]);
    cp_async16(tile, out + 2);
    cp_async_wait<0>();
    out[0] = tile[0];
}

// Reads the destination of a copy before (phase 0) or after (phase 1) the wait.
__global__ void copy_without_wait_kernel(float* out, const float* in) {
    LLMC_SHARED(float, tile, [128]);
    cp_async16(tile + threadIdx.x * 4, in + threadIdx.x * 4);
    cp_async_commit();
    __syncwarp();
    out[threadIdx.x] = tile[127 - threadIdx.x];
    __syncwarp();
    cp_async_wait<0>();
    __syncwarp();
    out[32 + threadIdx.x] = tile[127 - threadIdx.x];
}

// Two groups; wait<1> allows the second to be in flight.
__global__ void too_weak_wait_kernel(float* out, const float* in) {
    LLMC_SHARED(float, tile, [2][128]);
    const int t = static_cast<int>(threadIdx.x);
    for (int group = 0; group < 2; group++) {
        cp_async16(&tile[group][t * 4], in + t * 4);
        cp_async_commit();
    }
    cp_async_wait<1>();
    __syncwarp();
    out[t] = tile[0][127 - t];
    out[32 + t] = tile[1][127 - t];
}

// Issues a copy and fails, or does neither and checks that the earlier copy does not overwrite its shared memory.
__global__ void copy_and_fail_kernel(int* out, int fails) {
    LLMC_SHARED(int, tile, [32 * 4]);
    const int t = static_cast<int>(threadIdx.x);
    if (fails) cp_async16(tile + t * 4, out + 128 + t * 4);
    cp_async_commit();
    if (fails) __trap();
    tile[t * 4] = 1000 + t;
    cp_async_wait<0>();
    out[t] = tile[t * 4];
}

constexpr int kMisalignedRowLine = __LINE__ + 4;
__global__ void misaligned_ldmatrix_kernel(int* out) {
    LLMC_SHARED(bf16, tile, [32 * 8 + 8]);
    uint32_t r[4];
    ldmatrix_x4<false>(r, tile + threadIdx.x * 8 + 4);
    out[threadIdx.x] = static_cast<int>(r[0]);
}

// ---- traps ----------------------------------------------------------------------------------------------------------

__global__ void trap_kernel(int* out) {
    if (threadIdx.x == 9) __trap();
    out[threadIdx.x] = 1;
}

const std::string long_text(2000, 'x');  // outside the kernel, because an abandoned kernel must not own heap memory
__global__ void long_message_kernel(int*) { host::executor().fail("%s", long_text.c_str()); }

__global__ void plain_kernel(int* out) {
    if (threadIdx.x + threadIdx.z + blockIdx.x + blockIdx.y == 0) out[0] = 1;
}
__global__ void two_pointers_kernel(int* out, const int* in) { out[threadIdx.x] = in[threadIdx.x]; }

}  // namespace

TEST_CASE("mistakes: barrier divergence") {
    expect_report<some_threads_skip_barrier_kernel>(
        {2, 64}, "some_threads_skip_barrier_kernel",
        {"barrier divergence: thread exited while|barrier divergence: 4 threads exited before|threads exited before",
         at_line(kPartialBarrierLine)});
    expect_report<one_thread_exits_kernel>(
        {1, 64}, "one_thread_exits_kernel",
        {"barrier divergence: thread exited while|barrier divergence: 1 threads exited before",
         at_line(kExitBarrierLine)});
    expect_report<two_barriers_kernel>({1, 64}, "two_barriers_kernel",
                                       {"barrier divergence: this thread is at", "32 others wait at",
                                        at_line(kFirstBarrierLine), at_line(kFirstBarrierLine + 3)});
}

TEST_CASE("mistakes: syncwarp") {
    expect_report<lane_skips_syncwarp_kernel>(
        {1, 64}, "lane_skips_syncwarp_kernel",
        {"lane exited while lane|mask names exited lanes", "__syncwarp at", at_line(kSyncWarpLine)});
}

TEST_CASE("mistakes: shuffles") {
    expect_report<shuffle_with_exited_lane_kernel>(
        {1, 64}, "shuffle_with_exited_lane_kernel",
        {"lane exited while lane|mask names exited lanes", "__shfl_xor_sync at", at_line(kExitedLaneLine)});
    expect_report<shuffle_with_missing_lanes_kernel>(
        {1, 64}, "shuffle_with_missing_lanes_kernel",
        {"deadlock: 0 of 64 threads exited; 32 wait at __syncthreads", at_line(kMissingLanesLine + 1),
         "waits in __shfl_sync", at_line(kMissingLanesLine)});
    expect_report<mismatched_shuffles_kernel>({1, 64}, "mismatched_shuffles_kernel",
                                              {"warp divergence: this lane is in", "__shfl_xor_sync at",
                                               "__shfl_sync at", at_line(kOddLanesLine), at_line(kOddLanesLine + 2)});
    expect_report<mismatched_masks_kernel>({1, 64}, "mismatched_masks_kernel",
                                           {"warp divergence: this lane is in __shfl_xor_sync"});
    expect_report<mask_lacks_caller_kernel>(
        {1, 32}, "mask_lacks_caller_kernel",
        {"mask lacks the calling lane in __syncwarp at", "mask 0000ffff", at_line(kMaskLacksCallerLine)});
    expect_report<source_outside_mask_kernel>(
        {1, 32}, "source_outside_mask_kernel",
        {"__shfl_xor_sync reads lane", "not in mask 0000ffff", at_line(kSourceOutsideLine)});
    expect_report<mask_beyond_short_warp_kernel>(
        {1, 48}, "mask_beyond_short_warp_kernel",
        {"mask names lanes beyond the block in __shfl_xor_sync", at_line(kShortWarpLine)});
    expect_report<half_warp_reduces_kernel>(
        {1, 32}, "half_warp_reduces_kernel",
        {"lane exited while lane|mask names exited lanes", "warp_sum at", at_line(kReductionLine)});
}

TEST_CASE("mistakes: shared memory") {
#if !LLMC_ASAN  // ASan reports overruns at the access, which ends the process; child processes below test that
    expect_report<dynamic_overrun_kernel>(
        {1, 64, 256, false}, "dynamic_overrun_kernel",
        {"shared memory overrun: byte 256 of an array of 256 bytes", "[block (0,0,0)"});
    expect_report<static_overrun_kernel>({1, 64, 0, false}, "static_overrun_kernel",
                                         {"shared memory overrun: byte 256 of an array of 256 bytes"});
    expect_report<static_underrun_kernel>({1, 64, 0, false}, "static_underrun_kernel",
                                          {"shared memory overrun: byte -4 of an array of 256 bytes"});
#endif
    expect_report<no_dynamic_memory_kernel>(
        {1, 64}, "no_dynamic_memory_kernel",
        {"dynamic shared memory used at", "the launch gave 0 bytes", at_line(kNoDynamicLine)});
    expect_report<static_too_big_kernel>({1, 64}, "static_too_big_kernel",
                                         {"shared memory exceeds the limit: 64000 bytes of static arrays"});
    expect_report<static_and_dynamic_too_big_kernel>(
        {1, 64, 220 * 1024}, "static_and_dynamic_too_big_kernel",
        {"shared memory exceeds the limit: 32000 static + 225280 dynamic bytes",
         fmt::format("a block {}", host::settings().shared_limit)});
}

TEST_CASE("mistakes: the host device simulates a card with 99 KB of shared memory per block") {
    const ChangedSettings keep;
    host::settings().shared_limit = 99 * 1024;
    CHECK(device_info().shared_memory_per_block == 99 * 1024);
    CHECK(message_of_launch<plain_kernel>({1, 32, 99 * 1024}) == "");
    CHECK(message_of_launch<plain_kernel>({1, 32, 99 * 1024 + 16}).find("gives a block 101376") != std::string::npos);
    CHECK(message_of_launch<one_static_array_kernel>({1, 32, 98 * 1024}) == "");
    CHECK(message_of_launch<one_static_array_kernel>({1, 32, 99 * 1024}).find("gives a block 101376") !=
          std::string::npos);
    host::settings().shared_limit = 227 * 1024;
    CHECK(message_of_launch<one_static_array_kernel>({1, 32, 99 * 1024}) == "");
}

TEST_CASE("mistakes: launch limits") {
    const auto refused = [](dim3 grid, dim3 block, size_t bytes, const char* text) {
        expect_report<plain_kernel>({grid, block, bytes, false}, "plain_kernel",
                                    {"invalid launch configuration", text});
    };
    refused(1, 1025, 0, "1025 threads per block, at most 1024");
    refused(1, dim3(32, 33), 0, "1056 threads per block");
    refused(1, dim3(1, 1, 65), 0, "block.z is 65, at most 64");
    refused(1, 32, 228 * 1024, "0 static + 233472 dynamic bytes, and this device gives a block");
    refused(dim3(1, 65536), 32, 0, "grid (1,65536,1) too large");
    refused(dim3(1, 1, 65536), 32, 0, "grid (1,1,65536) too large");
    refused(dim3(0x80000000u), 32, 0, "grid (2147483648,1,1) too large");
    refused(0, 32, 0, "a dimension is zero");
    refused(1, dim3(32, 0), 0, "a dimension is zero");
    // The limits themselves are allowed.
    CHECK(message_of_launch<plain_kernel>({1, 32, host::settings().shared_limit}) == "");
    if (LLMC_TSAN) return;  // slow there
    CHECK(message_of_launch<plain_kernel>({1, 1024}) == "");
    CHECK(message_of_launch<plain_kernel>({1, dim3(16, 1, 64)}) == "");
    CHECK(message_of_launch<plain_kernel>({dim3(1, 65535), 1}) == "");
}

TEST_CASE("mistakes: memory that was never written is NaN") {
    const ChangedSettings keep;
    for (const host::Order order : kOrders) {
        host::emulator_settings().order = order;
        DeviceArray<float> out(256);
        launch<uninitialised_shared_kernel>({1, 64, 256, test_stream()}, inout(out));
        const std::vector<float> values = out.download();
        int wrong = 0;
        for (size_t i = 0; i < values.size(); i++)
            wrong += i < 64 && i % 2 ? values[i] != 1.0f : values[i] == values[i];
        CHECK(wrong == 0);
    }
    DeviceArray<float>* fresh = new DeviceArray<float>(100);
    float* const address = fresh->get();
    fresh->upload(std::vector<float>(100, 3.0f));
    delete fresh;
    // Reused memory is poisoned again. DeviceArray would hide that, so this test allocates by hand.
    float* again = static_cast<float*>(device_malloc(400));
    CHECK(again == address);
    float staged[100];
    copy_to_host(staged, again, 400, test_stream());
    synchronize(test_stream());
    for (float f : staged) CHECK(f != f);
    device_free(again);
}

TEST_CASE("mistakes: vector accesses and asynchronous copies") {
    expect_report<misaligned_load_kernel>({1, 32}, "misaligned_load_kernel",
                                          {"misaligned vector access", "is not a multiple of 16"});
    expect_report<misaligned_store_kernel>({1, 32}, "misaligned_store_kernel", {"misaligned vector access"});
    expect_report<misaligned_copy_kernel>({1, 32}, "misaligned_copy_kernel",
                                          {"cp.async address is not 16-byte aligned", at_line(kMisalignedCopyLine)});
    expect_report<misaligned_ldmatrix_kernel>(
        {1, 32}, "misaligned_ldmatrix_kernel",
        {"ldmatrix row address is not 16-byte aligned", at_line(kMisalignedRowLine)});
}

TEST_CASE("mistakes: an asynchronous copy read before its wait is NaN") {
    const ChangedSettings keep;
    std::vector<float> input(128);
    for (size_t i = 0; i < input.size(); i++) input[i] = static_cast<float>(i);
    DeviceArray<float> in_array(input), out_array(64);
    for (const host::Order order : kOrders) {
        host::emulator_settings().order = order;
        launch<copy_without_wait_kernel>({1, 32, 0, test_stream()}, out(out_array), in(in_array));
        const std::vector<float> values = out_array.download();
        for (size_t i = 0; i < 32; i++) {
            CHECK(values[i] != values[i]);
            CHECK(values[32 + i] == static_cast<float>(127 - i));
        }
        launch<too_weak_wait_kernel>({1, 32, 0, test_stream()}, out(out_array), in(in_array));
        const std::vector<float> weak = out_array.download();
        for (size_t i = 0; i < 32; i++) {
            CHECK(weak[i] == static_cast<float>(127 - i));
            CHECK(weak[32 + i] != weak[32 + i]);
        }
    }
}

TEST_CASE("mistakes: traps") { expect_report<trap_kernel>({1, 64}, "trap_kernel", {"__trap"}); }

// An error leaves nothing behind: no copies, unfinished barriers, stacks or contexts.
TEST_CASE("mistakes: many errors in a row") {
    for (int i = 0; i < (LLMC_TSAN ? 5 : 40); i++) {
        CHECK(holds(message_of_launch<two_barriers_kernel>({4, 256}), "barrier divergence"));
        CHECK(holds(message_of_launch<shuffle_with_missing_lanes_kernel>({4, 256}), "deadlock"));
    }
    check_still_works();
}

TEST_CASE("mistakes: asynchronous copies of a kernel that failed are forgotten") {
    DeviceArray<int> memory(std::vector<int>(4096, 7));
    const auto run = [&](int fails) {
        return message_of([&] { launch<copy_and_fail_kernel>({1, 32, 0, test_stream()}, inout(memory), fails); });
    };
    CHECK(holds(run(1), "__trap"));
    CHECK(run(0) == "");
    for (int i = 0; i < 32; i++) CHECK(memory.download()[static_cast<size_t>(i)] == 1000 + i);
}

// A long message is cut so that its end still has the kernel, thread and launch.
TEST_CASE("mistakes: long messages") {
    expect_report<long_message_kernel>({1, 32}, "long_message_kernel", {"xxxxxxxx"});
}

TEST_CASE("mistakes: pointers") {
    DeviceArray<int> a(64), b(64);
    const std::vector<int> host_memory(64);
    const ChangedSettings keep;
    const auto run = [&](const Access& first, const Access& second, const int* pointer) {
        return message_of([&] {
            launch<two_pointers_kernel>({1, 64, 0, test_stream()}, {first, second}, a.get(), pointer);
        });
    };
    CHECK(run(out(a.get(), 64), in(b.get(), 64), b.get()) == "");
    const struct {
        std::string message;
        const char* text;
    } cases[] = {
        {run(out(a.get(), 64), in(b.get(), 64), host_memory.data()), "host pointer "},
        {run(out(a.get(), 64), in(a.get(), 64), b.get()), "is in no tensor that the launch declares"},
        {run(out(a.get(), 64), in(b.get(), 65), b.get()), "260 bytes at "},
        {run(out(a.get(), 64), in(b.get() + 1, 64), b.get() + 1), "reach beyond their allocation"},
        {run(out(a.get(), 64), in(host_memory.data(), 64), host_memory.data()), "host pointer "},
    };
    for (const auto& c : cases) {
        CAPTURE(c.message);
        CHECK(holds(c.message, c.text));
        CHECK(holds(c.message, "two_pointers_kernel"));
    }
    CHECK(holds(cases[0].message, "passed to a kernel"));
    CHECK(holds(cases[0].message, "launched at "));
    int* freed = static_cast<int*>(device_malloc(256));
    device_free(freed);
    CHECK(holds(run(out(a.get(), 64), in(freed, 64), freed), "or it was freed"));
    check_still_works();
}
