// Memory and copies of the CUDA runtime: directions, bounds, bytes that were never written, staging.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "dev/virtual_gpu/cuda/memory_api.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/kernels.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

char* pinned_bytes(size_t bytes) {
    void* p = nullptr;
    REQUIRE(cudaMallocHost(&p, bytes) == cudaSuccess);
    return static_cast<char*>(p);
}

}  // namespace

TEST_CASE("virtual_gpu memory: a copy's direction is where its pointers lie") {
    char *d = device_bytes(64), *e = device_bytes(64), *p = pinned_bytes(64), pageable[64] = {};
    REQUIRE(cudaMemset(d, 1, 64) == cudaSuccess);
    std::memset(p, 2, 64);
    CHECK(cudaMemcpy(d, p, 64, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(e, d, 64, cudaMemcpyDeviceToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(pageable, e, 64, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(pageable[63] == 2);
    CHECK(cudaMemcpy(p, d, 64, cudaMemcpyDefault) == cudaSuccess);
    CHECK(cudaMemcpy(p, pageable, 64, cudaMemcpyHostToHost) == cudaSuccess);

    CHECK(cudaMemcpy(d, p, 64, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(d, pageable, 64, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(pageable, d, 64, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(p, pageable, 64, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(d, p, 64, static_cast<cudaMemcpyKind>(9)) == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaGetLastError() == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    for (void* device : {d, e}) CHECK(cudaFree(device) == cudaSuccess);
    CHECK(cudaFreeHost(p) == cudaSuccess);
}

TEST_CASE("virtual_gpu memory: copies and fills stay in their allocations") {
    char *d = device_bytes(100), *p = pinned_bytes(100);
    CHECK(cudaMemset(d, 0, 100) == cudaSuccess);
    CHECK(cudaMemset(d, 0, 101) == cudaErrorInvalidValue);
    CHECK(cudaMemset(d + 1, 0, 100) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(p + 1, d, 100, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(d, p, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(p, d, 100, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemset(p, 0, 100) == cudaSuccess);  // the device can access pinned memory too
    char pageable[4];
    CHECK(cudaMemset(pageable, 0, 4) == cudaErrorInvalidValue);
    CHECK(cudaFree(d) == cudaSuccess);
    CHECK(cudaMemcpy(p, d, 100, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(p) == cudaSuccess);
    cudaGetLastError();
}

TEST_CASE("virtual_gpu memory: bytes that were never written do not reach the host") {
    if (!is_child()) return expect_child({}, {"virtual GPU: cudaMemcpy: the source: byte 4 of 8 was never written"});
    char *d = device_bytes(8), *e = device_bytes(8), out[8];
    CHECK(cudaMemset(d, 0, 4) == cudaSuccess);
    CHECK(cudaMemcpy(e, d, 8, cudaMemcpyDeviceToDevice) == cudaSuccess);  // moves it
    CHECK(cudaMemcpy(out, e, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemcpy(out, e, 8, cudaMemcpyDeviceToHost) == cudaErrorLaunchFailure);
    CHECK(cudaMalloc(reinterpret_cast<void**>(&d), 1) == cudaErrorLaunchFailure);
}

TEST_CASE("virtual_gpu memory: a pageable source is staged at the call and a pageable destination waited for") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "lazy"}});
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    char *d = device_bytes(4), *p = pinned_bytes(4), pageable[4] = {1, 2, 3, 4}, out[4] = {};
    const uint64_t before = pageable_copies();
    CHECK(cudaMemcpyAsync(d, pageable, 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    pageable[0] = 9;
    CHECK(cudaMemcpyAsync(out, d, 4, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(out[0] == 1);
    CHECK(pageable_copies() - before == 2);
    // Pinned memory is read when the copy runs, and written when it has run; neither happens before somebody waits.
    std::memset(p, 5, 4);
    CHECK(cudaMemcpyAsync(d, p, 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    p[0] = 6;
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaMemcpy(out, d, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(out[0] == 6);
    CHECK(out[1] == 5);
    std::memset(p, 0, 4);
    CHECK(cudaMemcpyAsync(p, d, 4, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(p[0] == 0);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(p[0] == 6);
    // cudaMemcpy from pageable memory first waits for its stream, the default one.
    std::memset(p, 0, 4);
    CHECK(cudaMemcpyAsync(p, d, 4, cudaMemcpyDeviceToHost, nullptr) == cudaSuccess);
    CHECK(p[0] == 0);
    CHECK(cudaMemcpy(d, pageable, 4, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(p[0] == 6);
}

TEST_CASE("virtual_gpu memory: only allocations can be freed") {
    char *d = device_bytes(16), *p = pinned_bytes(16);
    CHECK(cudaFree(nullptr) == cudaSuccess);
    CHECK(cudaFreeHost(nullptr) == cudaSuccess);
    CHECK(cudaFree(d + 1) == cudaErrorInvalidValue);
    CHECK(cudaFree(p) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(d) == cudaErrorInvalidValue);
    CHECK(cudaFree(d) == cudaSuccess);
    CHECK(cudaFree(d) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(p) == cudaSuccess);
    cudaGetLastError();
    void* none = &none;
    CHECK(cudaMalloc(&none, 0) == cudaSuccess);
    CHECK(none == nullptr);
}

TEST_CASE("virtual_gpu memory: the card's memory is limited") {
    size_t free_bytes = 0, all_bytes = 0, later = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess);
    CHECK(all_bytes == size_t{80} << 30);
    char* d = device_bytes(1 << 20);
    CHECK(cudaMemGetInfo(&later, &all_bytes) == cudaSuccess);
    CHECK(free_bytes - later == 1 << 20);
    void* p = nullptr;
    CHECK(cudaMalloc(&p, later + 1) == cudaErrorMemoryAllocation);
    CHECK(p == nullptr);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaFree(d) == cudaSuccess);
    CHECK(cudaMemGetInfo(&later, &all_bytes) == cudaSuccess);
    CHECK(later == free_bytes);
}
