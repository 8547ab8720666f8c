// Errors of calls and of work that ran.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/kernels.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

// A lost device returns its error from every call, and nothing clears it.
void check_lost(cudaError_t error) {
    void* p = nullptr;
    char byte = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    cudaFuncAttributes attributes;
    size_t a = 0, b = 0;
    for (int again = 0; again < 2; again++) {
        CHECK(cudaDeviceSynchronize() == error);
        CHECK(cudaStreamSynchronize(nullptr) == error);
        CHECK(cudaMalloc(&p, 1) == error);
        CHECK(cudaMallocHost(&p, 1) == error);
        CHECK(cudaFree(nullptr) == error);
        CHECK(cudaMemcpy(&byte, &byte, 1, cudaMemcpyHostToHost) == error);
        CHECK(cudaMemsetAsync(nullptr, 0, 1, nullptr) == error);
        CHECK(cudaStreamCreate(&stream) == error);
        CHECK(cudaEventCreate(&event) == error);
        CHECK(cudaFuncGetAttributes(&attributes, add_kernel()) == error);
        CHECK(cudaMemGetInfo(&a, &b) == error);
        CHECK(launch(poke_kernel(), 1, 1, 0, nullptr, p, 0l) == error);
        CHECK(cudaGetLastError() == error);
        CHECK(cudaPeekAtLastError() == error);
    }
    std::thread([&] { CHECK(cudaGetLastError() == error); }).join();
}

// A kernel that writes four bytes at offset `at` of 64, followed by work that must not run any more.
void check_poke(long at, cudaError_t error) {
    char* const x = device_bytes(64);
    CHECK(launch(poke_kernel(), 1, 1, 0, nullptr, x, 60l) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    std::atomic<bool> ran{false};
    CHECK(launch(poke_kernel(), 1, 1, 0, nullptr, x, at) == cudaSuccess);
    submit(nullptr, "what comes next", [&] { ran = true; });
    CHECK(cudaStreamSynchronize(nullptr) == error);
    check_lost(error);
    CHECK_FALSE(ran);
}

}  // namespace

TEST_CASE("virtual_gpu errors: an illegal address") {
    if (!is_child())
        return expect_child({}, {"virtual GPU: kernel poke", "st.global.u32 [%rd4], %r1", "store of 4 bytes",
                                 "past an allocation of 64 bytes"});
    check_poke(64, cudaErrorIllegalAddress);
}

TEST_CASE("virtual_gpu errors: a misaligned address") {
    if (!is_child()) return expect_child({}, {"virtual GPU: kernel poke", "misaligned store of 4 bytes"});
    check_poke(2, cudaErrorMisalignedAddress);
}

TEST_CASE("virtual_gpu errors: a trap") {
    if (!is_child()) return expect_child({}, {"virtual GPU: kernel stop", "trap"});
    CHECK(launch(register_kernel("stop", "", "trap;"), 1, 1, 0, nullptr) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    check_lost(cudaErrorLaunchFailure);
}

TEST_CASE("virtual_gpu errors: an instruction that is not known") {
    if (!is_child()) return expect_child({}, {"virtual GPU: kernel odd", "frobnicate.b32"});
    CHECK(launch(register_kernel("odd", "", "frobnicate.b32 %r1, %r2;"), 1, 1, 0, nullptr) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalInstruction);
}

TEST_CASE("virtual_gpu errors: work of the library's own that fails") {
    if (!is_child()) return expect_child({}, {"virtual GPU: a product: something else"});
    CHECK(submit(nullptr, "a product", [] { fault("something else"); }) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
}

TEST_CASE("virtual_gpu errors: a call's own error belongs to the thread and is returned once") {
    CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
    std::thread([] { CHECK(cudaGetLastError() == cudaSuccess); }).join();
    CHECK(cudaFree(nullptr) == cudaSuccess);  // success does not clear it
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("virtual_gpu errors: names and texts") {
    CHECK(std::string(cudaGetErrorName(cudaErrorIllegalAddress)) == "cudaErrorIllegalAddress");
    CHECK(std::string(cudaGetErrorString(cudaErrorIllegalAddress)) == "an illegal memory access was encountered");
    CHECK(std::string(cudaGetErrorString(cudaSuccess)) == "no error");
    CHECK(std::string(cudaGetErrorName(static_cast<cudaError_t>(12345))) == "unrecognized error code");
}

TEST_CASE("virtual_gpu errors: no device") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_DEVICES", "0"}});
    int count = 1, device = 0;
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
    CHECK(count == 0);
    CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
    CHECK(cudaGetDevice(&device) == cudaErrorNoDevice);
}

TEST_CASE("virtual_gpu devices: properties of a card") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_CARD", "sm_120"}});
    cudaDeviceProp p;
    int value = 0;
    CHECK(cudaGetDeviceProperties(&p, 0) == cudaSuccess);
    CHECK(std::string(p.name) == "NVIDIA GeForce RTX 5090");
    CHECK(p.major == 12);
    CHECK(p.minor == 0);
    CHECK(p.sharedMemPerBlockOptin == 99 * 1024);
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
    CHECK(value == 12);
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    CHECK(value == 99 * 1024);
    CHECK(cudaGetDeviceProperties(&p, 1) == cudaErrorInvalidDevice);
    CHECK(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(9999), 0) == cudaErrorInvalidValue);
    char id[16];
    CHECK(cudaDeviceGetPCIBusId(id, sizeof id, 0) == cudaSuccess);
    CHECK(std::string(id) == "0000:01:00.0");
    CHECK(cudaDeviceGetPCIBusId(id, 5, 0) == cudaErrorInvalidValue);
}

namespace {

std::string uuid_of(int device) {
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, device) == cudaSuccess);
    std::string digits;
    for (const char byte : p.uuid.bytes) digits += std::to_string(static_cast<uint8_t>(byte)) + ".";
    return digits;
}

}  // namespace

TEST_CASE("virtual_gpu devices: each has a UUID of its own and the same one in every process") {
    if (is_child()) {
        CHECK(uuid_of(0) != uuid_of(1));
        std::printf("%s\n", uuid_of(0).c_str());
        return;
    }
    const auto output_with = [](Variables variables) {
        variables["VIRTUAL_GPU_DEVICES"] = "2";
        const Child child = run_child(variables);
        CHECK(child.status == 0);
        return child.output;
    };
    const std::string uuid = uuid_of(0);
    CHECK(output_with({}).find(uuid) != std::string::npos);
    CHECK(output_with({{"VIRTUAL_GPU_CARD", "sm_80"}}).find(uuid) == std::string::npos);
    CHECK(output_with({{"VIRTUAL_GPU_UUID", "another"}}).find(uuid) == std::string::npos);
}

TEST_CASE("virtual_gpu devices: versions of the driver and the runtime") {
    if (!is_child()) {
        expect_child({});
        return expect_child({{"VIRTUAL_GPU_DRIVER", "13010"}});
    }
    int driver = 0, runtime = 0;
    CHECK(cudaDriverGetVersion(&driver) == cudaSuccess);
    CHECK(cudaRuntimeGetVersion(&runtime) == cudaSuccess);
    CHECK(runtime == CUDART_VERSION);
    CHECK(driver == (std::getenv("VIRTUAL_GPU_DRIVER") ? 13010 : CUDART_VERSION));
    CHECK(cudaDriverGetVersion(nullptr) == cudaErrorInvalidValue);
    CHECK(cudaRuntimeGetVersion(nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("virtual_gpu errors: an unknown deliberate fault ends the process") {
    if (is_child()) {
        cudaFree(nullptr);
        void* p = nullptr;
        cudaMalloc(&p, 1);
        return;
    }
    for (const char* value : {"kernels:1", "kernel:", "kernel:0", "kernel:1x", "kernel:-1", "1"})
        for (const char* before : {"", "memory:1,"}) {
            const Child child = run_child({{"VIRTUAL_GPU_FAULT", std::string(before) + value}});
            INFO(before, value);
            CHECK(child.status == 2 << 8);
            CHECK(child.output.find(std::string("virtual GPU: VIRTUAL_GPU_FAULT=") + value) != std::string::npos);
        }
    expect_child({{"VIRTUAL_GPU_FAULT", "kernel"}});
    expect_child({{"VIRTUAL_GPU_FAULT", "kernel:2,memory:1"}});
}
