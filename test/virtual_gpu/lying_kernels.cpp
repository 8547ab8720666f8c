// Kernels with a deliberate error in every launch: which of their results are wrong, and that other kernels' are right.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "test/virtual_gpu/child.h"
#include "test/virtual_gpu/kernels.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

// NAME(to, from): to[i] = from[i] for each thread of the grid, elements of a type.
const void* copy_kernel(const std::string& name, const std::string& type, int bytes) {
    const std::string size = std::to_string(bytes), reg = type == "u64" ? "%rd9" : "%r9";
    return register_kernel(name, ".param .u64 to, .param .u64 from",
                           "ld.param.u64 %rd1, [to];\nld.param.u64 %rd2, [from];\nmov.u32 %r1, %ctaid.x;\n"
                           "mov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.s32 %r4, %r1, %r2, %r3;\n"
                           "mul.wide.u32 %rd3, %r4, " +
                               size +
                               ";\nadd.s64 %rd4, %rd1, %rd3;\nadd.s64 %rd5, %rd2, %rd3;\n"
                               "ld.global." +
                               type + " " + reg + ", [%rd5];\nst.global." + type + " [%rd4], " + reg + ";");
}

template <class T>
T* device_of(const std::vector<T>& values) {
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, values.size() * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    return static_cast<T*>(p);
}
template <class T>
std::vector<T> host_of(const T* p, size_t count) {
    std::vector<T> values(count);
    REQUIRE(cudaMemcpy(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
}

// A kernel's results for values in blocks of 32 threads, followed by as much room again, filled with 77.
template <class T>
std::vector<T> copied(const void* kernel, const std::vector<T>& values) {
    T* const from = device_of(values);
    std::vector<T> before(2 * values.size(), T{77});
    T* const to = device_of(before);
    CHECK(launch(kernel, static_cast<unsigned>(values.size() / 32), 32, 0, nullptr, to, from) == cudaSuccess);
    const std::vector<T> result = host_of(to, 2 * values.size());
    CHECK(cudaFree(from) == cudaSuccess);
    CHECK(cudaFree(to) == cudaSuccess);
    return result;
}

template <class T>
std::vector<T> with_behind(std::vector<T> values) {
    values.resize(2 * values.size(), T{77});
    return values;
}

}  // namespace

TEST_CASE("virtual_gpu lies: one stored value of a kernel is 1 % wrong") {
    if (!is_child()) {
        expect_child({{"VIRTUAL_GPU_FAULT", "wrong-kernel:cop"}});
        return expect_child({{"VIRTUAL_GPU_FAULT", "wrong-kernel:copy"}, {"VIRTUAL_GPU_ORDER", "random"}});
    }
    std::vector<float> values;
    for (int i = 0; i < 128; i++) values.push_back(static_cast<float>(i + 1));
    values.back() = 0;  // the last value that is not 0 becomes wrong
    const void* const copy = copy_kernel("copy", "f32", 4);
    std::vector<float> expected = with_behind(values);
    for (int again = 0; again < 2; again++) {
        std::vector<float> result = copied(copy, values);
        const float wrong = std::fabs(result[126] / values[126] - 1);
        CHECK(wrong >= 0x1p-7f);
        CHECK(wrong <= 0x1p-6f);
        result[126] = values[126];
        CHECK(result == expected);
    }
    CHECK(copied(copy_kernel("other", "f32", 4), values) == expected);
}

TEST_CASE("virtual_gpu lies: the wrong value of each width") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_FAULT", "wrong-kernel"}});
    // The upper half of a word is BF16 as well. Zeros become 2^-7, in FP8 1.5.
    std::vector<uint16_t> halves(32, bf16_of(3.0f)), zeros(32, 0);
    CHECK(std::fabs(float_of_bf16(copied(copy_kernel("h", "u16", 2), halves)[31]) / 3 - 1) <= 0x1p-6f);
    CHECK(copied(copy_kernel("h", "u16", 2), halves)[31] != halves[31]);
    CHECK(copied(copy_kernel("h", "u16", 2), zeros)[31] == bf16_of(0x1p-7f));
    std::vector<uint8_t> bytes(32, e4m3_of(3.0f));
    CHECK(float_of_e4m3(copied(copy_kernel("b", "u8", 1), bytes)[31]) == 3.25f);
    CHECK(copied(copy_kernel("b", "u8", 1), std::vector<uint8_t>(32, 0))[31] == e4m3_of(1.5f));
    CHECK(copied(copy_kernel("w", "u32", 4), std::vector<uint32_t>(32, 0))[31] == std::bit_cast<uint32_t>(0x1p-7f));
    std::vector<uint64_t> pairs(32, 0x3f800000'3f800000u);
    CHECK(copied(copy_kernel("l", "u64", 8), pairs)[31] == 0x3f820000'3f800000u);
}

TEST_CASE("virtual_gpu lies: the last store of a launch is zero") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_FAULT", "zero-store:copy"}});
    const std::vector<uint64_t> values(64, 0x3f800000'3f800000u);
    std::vector<uint64_t> expected = with_behind(values);
    std::fill(expected.begin() + 32, expected.begin() + 64, 0);
    CHECK(copied(copy_kernel("copy", "u64", 8), values) == expected);
    CHECK(copied(copy_kernel("other", "u64", 8), values) == with_behind(values));
}

TEST_CASE("virtual_gpu lies: atomics are stores too") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_FAULT", "wrong-kernel:total"}});
    const void* const total = register_kernel("total", ".param .u64 x",
                                              "ld.param.u64 %rd1, [x];\nmov.f32 %f1, 0f3f800000;\n"
                                              "red.global.add.f32 [%rd1], %f1;");
    float* const x = device_of(std::vector<float>{0});
    CHECK(launch(total, 2, 32, 0, nullptr, x) == cudaSuccess);
    CHECK(host_of(x, 1)[0] == 65);
}

TEST_CASE("virtual_gpu lies: bulk copies are stores too") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_FAULT", "wrong-kernel:bulk"}});
    const void* const bulk =
        register_kernel("bulk", ".param .u64 to",
                        ".shared .align 16 .b8 data[16];\nld.param.u64 %rd1, [to];\nmov.f32 %f1, 0f3f800000;\n"
                        "st.shared.v4.f32 [data], {%f1, %f1, %f1, %f1};\nfence.proxy.async.shared::cta;\n"
                        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [data], 16;\n"
                        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;");
    float* const x = device_of(std::vector<float>(4, 0));
    CHECK(launch(bulk, 1, 1, 0, nullptr, x) == cudaSuccess);
    CHECK(host_of(x, 4) == std::vector<float>{1, 1, 1, 1 + 0x1p-6f});
}

TEST_CASE("virtual_gpu lies: a kernel that differs from run to run") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_FAULT", "unsteady-kernel:copy"}});
    const void* const copy = copy_kernel("copy", "u32", 4);
    std::vector<uint32_t> values(64, 1000);
    std::vector<std::vector<uint32_t>> results;
    for (int run = 0; run < 3; run++) results.push_back(copied(copy, values));
    CHECK(results[0] != results[1]);
    CHECK(results[1] != results[2]);
    for (const std::vector<uint32_t>& result : results) {
        int changed = 0;
        for (size_t i = 0; i < result.size(); i++) {
            const uint32_t right = i < 64 ? 1000 : 77;
            changed += result[i] != right;
            CHECK((result[i] | 1) == (right | 1));
        }
        CHECK(changed <= 1);
    }
    // A single value changes every other time.
    const void* const one = register_kernel("copy_one", ".param .u64 to",
                                            "ld.param.u64 %rd1, [to];\nmov.u32 %r1, 4;\nst.global.u32 [%rd1], %r1;");
    uint32_t* const x = device_of(std::vector<uint32_t>{0});
    uint32_t sum = 0;
    for (int run = 0; run < 4; run++) {
        CHECK(launch(one, 1, 1, 0, nullptr, x) == cudaSuccess);
        sum += host_of(x, 1)[0];
    }
    CHECK(sum == 2 * 4 + 2 * 5);
}

TEST_CASE("virtual_gpu lies: a store after the end of a kernel's results") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_FAULT", "stray:copy"}});
    const std::vector<uint32_t> values(64, 5);
    std::vector<uint32_t> expected = with_behind(values);
    expected[64] = 0x5a5a5a5a;
    CHECK(copied(copy_kernel("copy", "u32", 4), values) == expected);
    CHECK(copied(copy_kernel("other", "u32", 4), values) == with_behind(values));
    // After an odd length: the next word. At the end of the allocation: nothing.
    const std::vector<uint8_t> bytes(32, 5);
    uint8_t* const from = device_of(bytes);
    uint8_t* const to = device_of(std::vector<uint8_t>(31 + 8, 0));
    CHECK(launch(copy_kernel("copy_bytes", "u8", 1), 1, 31, 0, nullptr, to, from) == cudaSuccess);
    const std::vector<uint8_t> result = host_of(to, 39);
    for (size_t i = 0; i < result.size(); i++) CHECK(result[i] == (i < 31 ? 5 : i >= 32 && i < 36 ? 0x5a : 0));
    CHECK(launch(copy_kernel("copy_bytes", "u8", 1), 1, 32, 0, nullptr, from, from) == cudaSuccess);
    CHECK(host_of(from, 32) == bytes);
}

TEST_CASE("virtual_gpu lies: a store outside all memory") {
    if (!is_child())
        return expect_child({{"VIRTUAL_GPU_FAULT", "stray-fault:copy"}},
                            {"virtual GPU: kernel copy: store of 4 bytes at global ",
                             "0 bytes past an allocation of 256 bytes, on purpose: VIRTUAL_GPU_FAULT=stray-fault"});
    const std::vector<uint32_t> values(64, 5);
    CHECK(copied(copy_kernel("other", "u32", 4), values) == with_behind(values));
    uint32_t *const from = device_of(values), *const to = device_of(values);
    CHECK(launch(copy_kernel("copy", "u32", 4), 2, 32, 0, nullptr, to, from) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
}

TEST_CASE("virtual_gpu lies: a cast to FP8 that ignores NaN") {
    if (!is_child()) {
        expect_child({{"VIRTUAL_GPU_FAULT", "cast:narrow"}, {"TEST_CAST", "lies"}});
        expect_child({{"VIRTUAL_GPU_FAULT", "cast"}, {"TEST_CAST", "lies"}});
        return expect_child({{"VIRTUAL_GPU_FAULT", "cast:other"}});
    }
    const auto kernel = [](const std::string& format) {
        return register_kernel("narrow", ".param .u64 to, .param .u64 from",
                               "ld.param.u64 %rd1, [to];\nld.param.u64 %rd2, [from];\nld.global.f32 %f1, [%rd2];\n"
                               "ld.global.f32 %f2, [%rd2+4];\n.reg .b16 %h1;\ncvt.rn.satfinite." +
                                   format + "x2.f32 %h1, %f1, %f2;\nst.global.u16 [%rd1], %h1;");
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    float* const from = device_of(std::vector<float>{nan, -1.5f});
    uint16_t* const to = device_of(std::vector<uint16_t>{0});
    const bool lies = std::getenv("TEST_CAST");
    CHECK(launch(kernel("e4m3"), 1, 1, 0, nullptr, to, from) == cudaSuccess);
    CHECK(host_of(to, 1)[0] == ((lies ? 0x7e : 0x7f) << 8 | e4m3_of(-1.5f)));
    CHECK(launch(kernel("e5m2"), 1, 1, 0, nullptr, to, from) == cudaSuccess);
    CHECK(host_of(to, 1)[0] == ((lies ? 0x7b : 0x7f) << 8 | e5m2_of(-1.5f)));
}

TEST_CASE("virtual_gpu lies: a kernel that loses the device each time") {
    if (!is_child())
        return expect_child({{"VIRTUAL_GPU_FAULT", "fail-kernel:pok"}},
                            {"virtual GPU: kernel poke: lost on purpose: VIRTUAL_GPU_FAULT=fail-kernel"});
    float* const x = device_of(std::vector<float>(16, 1));
    CHECK(launch(add_kernel(), 1, 1, 0, nullptr, x, 1.0f) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(launch(poke_kernel(), 1, 1, 0, nullptr, x, 0l) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
}

TEST_CASE("virtual_gpu lies: a kernel that never ends and can be killed") {
    if (!is_child()) {
        const Child killed = run_child({{"VIRTUAL_GPU_FAULT", "hang-kernel:poke"}, {"TEST_KILLED", "1"}});
        CHECK(WIFSIGNALED(killed.status));
        CHECK(WTERMSIG(killed.status) == SIGTERM);
        return expect_child({{"VIRTUAL_GPU_FAULT", "hang-kernel:poke"}},
                            {"virtual GPU: kernel poke never ends: VIRTUAL_GPU_FAULT=hang-kernel"});
    }
    float* const x = device_of(std::vector<float>(16, 1));
    cudaStream_t hanging = nullptr, other = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&hanging, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(launch(add_kernel(), 1, 1, 0, hanging, x, 1.0f) == cudaSuccess);
    CHECK(cudaStreamSynchronize(hanging) == cudaSuccess);
    CHECK(launch(poke_kernel(), 1, 1, 0, hanging, x, 0l) == cudaSuccess);
    CHECK(launch(add_kernel(), 1, 1, 0, other, x, 1.0f) == cudaSuccess);
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);
    CHECK(cudaStreamQuery(hanging) == cudaErrorNotReady);
    if (!std::getenv("TEST_KILLED")) return;
    std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        kill(getpid(), SIGTERM);
    }).detach();
    cudaStreamSynchronize(hanging);
}
