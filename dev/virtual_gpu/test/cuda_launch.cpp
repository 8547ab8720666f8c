// Which image of a fat binary runs, and the limits of a launch: each kept once and broken once.
#include <doctest/doctest.h>

#include <string>

#include "dev/virtual_gpu/cuda/fat_binary.h"
#include "dev/virtual_gpu/cuda/functions.h"
#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/kernels.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

const void* empty_kernel(const std::string& directives = "", const std::string& body = "") {
    return register_kernel("empty", "", body, directives);
}
constexpr const char* kShared1024 = ".shared .align 16 .b8 room[1024];\nmov.u32 %r1, room;\nst.shared.u32 [%r1], %r1;";

cudaFuncAttributes attributes_of(const void* kernel) {
    cudaFuncAttributes attributes = {};
    REQUIRE(cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess);
    return attributes;
}

// Checks that a refused launch says why, leaves the error, and does nothing else.
void check_refused(cudaError_t status, cudaError_t expected) {
    CHECK(status == expected);
    CHECK(cudaPeekAtLastError() == expected);
    CHECK(cudaGetLastError() == expected);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

std::string text_of(const Choice& choice) { return std::string(choice.ptx); }

}  // namespace

TEST_CASE("virtual_gpu fat binary: code runs on its own generation") {
    FatBinary binary;
    binary.ptx(80, "ptx 80").cubin(80, cubin_of("k", 40)).ptx(90, "ptx 90a", FatBinary::kArchitecture);
    binary.cubin(90, cubin_of("k", 90), FatBinary::kArchitecture);
    const std::vector<Image> images = read_fat_binary(binary.data());
    REQUIRE(images.size() == 4);
    CHECK(name_of(images[0]) == "compute_80");
    CHECK(name_of(images[3]) == "sm_90a");

    CHECK(text_of(choose_image(images, 80)) == "ptx 80");
    CHECK(text_of(choose_image(images, 89)) == "ptx 80");  // the same major version
    CHECK(text_of(choose_image(images, 90)) == "ptx 90a");
    CHECK_FALSE(choose_image(images, 90).compiled);
    CHECK(registers_of(choose_image(images, 90).cubin).at("k") == 90);
    // PTX of 8.0 compiles for later cards; that of 9.0a and its code only run on 9.0.
    CHECK(text_of(choose_image(images, 100)) == "ptx 80");
    CHECK(choose_image(images, 100).compiled);
    CHECK(choose_image(images, 100).cubin.empty());
    CHECK(choose_image(images, 75).ptx.empty());
}

TEST_CASE("virtual_gpu fat binary: code that cannot be run here is reported") {
    FatBinary code, compressed, later;
    code.cubin(90, cubin_of("k", 32));
    CHECK(choose_image(read_fat_binary(code.data()), 90).missing ==
          "there is code for sm_90, but not the PTX it was made from: build with PTX=1");
    compressed.ptx(90, "?", FatBinary::kCompressed);
    CHECK(choose_image(read_fat_binary(compressed.data()), 90).missing ==
          "the PTX of compute_90 is compressed: build with PTX=1, or nvcc's --compress-mode=none");
    later.ptx(100, "family", FatBinary::kFamily);
    CHECK(choose_image(read_fat_binary(later.data()), 100).ptx == "family");
    CHECK(choose_image(read_fat_binary(later.data()), 120).ptx.empty());
    CHECK(choose_image(read_fat_binary(later.data()), 120).missing.empty());
    CHECK_THROWS_AS(read_fat_binary("no fat binary at all"), Fault);
    std::string broken = cubin_of("k", 32);
    broken.resize(100);
    CHECK_THROWS_AS(registers_of(broken), Fault);
}

TEST_CASE("virtual_gpu launch: a kernel without code for the card") {
    FatBinary binary;
    binary.ptx(100, module_of("empty", "", ""));
    check_refused(launch(register_kernel(binary, "empty"), 1, 32, 0, nullptr), cudaErrorNoKernelImageForDevice);
    FatBinary other;
    other.ptx(80, module_of("empty", "", ""));
    check_refused(launch(register_kernel(other, "another"), 1, 32, 0, nullptr), cudaErrorInvalidDeviceFunction);
    check_refused(launch("no kernel", 1, 32, 0, nullptr), cudaErrorInvalidDeviceFunction);
    FatBinary text;
    text.ptx(80, "this is no PTX {");
    check_refused(launch(register_kernel(text, "empty"), 1, 32, 0, nullptr), cudaErrorInvalidKernelImage);
    CHECK(launch(empty_kernel(), 1, 32, 0, nullptr) == cudaSuccess);
}

TEST_CASE("virtual_gpu launch: grids and blocks have their largest sizes") {
    const void* const kernel = empty_kernel();
    CHECK(launch(kernel, 3, dim3(4, 4, 64), 0, nullptr) == cudaSuccess);
    CHECK(launch(kernel, dim3(1, 2, 3), 1024, 0, nullptr) == cudaSuccess);
    for (const dim3 block : {dim3(1025), dim3(1, 1, 65), dim3(32, 33, 1), dim3(0), dim3(32, 0, 1), dim3(1, 1025, 1)})
        check_refused(launch(kernel, 1, block, 0, nullptr), cudaErrorInvalidConfiguration);
    for (const dim3 grid : {dim3(0), dim3(1, 65536, 1), dim3(1, 1, 65536), dim3(2147483648u)})
        check_refused(launch(kernel, grid, 32, 0, nullptr), cudaErrorInvalidConfiguration);
}

TEST_CASE("virtual_gpu launch: .maxntid") {
    const void* const kernel = empty_kernel(".maxntid 64, 1, 1");
    CHECK(attributes_of(kernel).maxThreadsPerBlock == 64);
    CHECK(launch(kernel, 1, 64, 0, nullptr) == cudaSuccess);
    check_refused(launch(kernel, 1, 65, 0, nullptr), cudaErrorInvalidValue);
}

TEST_CASE("virtual_gpu launch: more than 48 KiB of shared memory need the opt-in and static arrays count") {
    const void* const kernel = empty_kernel("", kShared1024);
    constexpr int kDefault = 48 * 1024 - 1024, kMost = 227 * 1024 - 1024;
    CHECK(attributes_of(kernel).sharedSizeBytes == 1024);
    CHECK(attributes_of(kernel).maxDynamicSharedSizeBytes == kDefault);
    CHECK(launch(kernel, 1, 32, kDefault, nullptr) == cudaSuccess);
    check_refused(launch(kernel, 1, 32, kDefault + 1, nullptr), cudaErrorInvalidValue);

    const auto grant = [&](int bytes) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    };
    CHECK(grant(kMost + 1) == cudaErrorInvalidValue);
    CHECK(grant(-1) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(grant(kMost) == cudaSuccess);
    CHECK(launch(kernel, 1, 32, kMost, nullptr) == cudaSuccess);
    CHECK(grant(2000) == cudaSuccess);  // sets the limit, up or down
    check_refused(launch(kernel, 1, 32, 2001, nullptr), cudaErrorInvalidValue);
}

TEST_CASE("virtual_gpu launch: a card with less shared memory") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_CARD", "sm_89"}});
    const void* const kernel = empty_kernel("", kShared1024);
    const auto grant = [&](int bytes) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    };
    CHECK(grant(99 * 1024 - 1024) == cudaSuccess);
    CHECK(grant(99 * 1024 - 1023) == cudaErrorInvalidValue);
}

TEST_CASE("virtual_gpu launch: registers are given to whole warps of four parts") {
    CHECK(registers_of_block(32, 1024) == 32 * 1024);
    CHECK(registers_of_block(33, 32) == 40 * 32 * 4);  // units of 256 per warp, and at least four warps
    CHECK(registers_of_block(255, 256) == 65536);
    CHECK(registers_of_block(80, 25 * 32) == 80 * 32 * 28);
    CHECK(registers_of_block(0, 1024) == 0);

    FatBinary binary;
    binary.ptx(90, module_of("empty", "", "")).cubin(90, cubin_of("empty", 255));
    const void* const kernel = register_kernel(binary, "empty");
    CHECK(attributes_of(kernel).numRegs == 255);
    CHECK(attributes_of(kernel).maxThreadsPerBlock == 256);
    CHECK(attributes_of(kernel).binaryVersion == 90);
    CHECK(launch(kernel, 1, 256, 0, nullptr) == cudaSuccess);
    check_refused(launch(kernel, 1, 257, 0, nullptr), cudaErrorLaunchOutOfResources);
}

TEST_CASE("virtual_gpu launch: limits of a card and of parameters") {
    Kernel kernel;
    kernel.shared_bytes = 1024;
    const Launch launch{&kernel, {1, 1, 1}, {32, 1, 1}, 99 * 1024 - 1023, {}};
    const auto error_on = [&](const char* name) {
        return check_launch(*find_card(name), kernel, launch, 1 << 20).error;
    };
    CHECK(error_on("sm_80") == cudaSuccess);
    CHECK(error_on("sm_89") == cudaErrorInvalidValue);
    CHECK(error_on("sm_120") == cudaErrorInvalidValue);
    kernel.shared_bytes = 1023;
    CHECK(error_on("sm_120") == cudaSuccess);
    kernel.parameter_bytes = 32764;
    CHECK(error_on("sm_120") == cudaSuccess);
    kernel.parameter_bytes++;
    CHECK(error_on("sm_120") == cudaErrorInvalidValue);
}

TEST_CASE("virtual_gpu launch: attributes are refused by name") {
    const void* const kernel = empty_kernel();
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeIgnore;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 32;
    config.attrs = attributes;
    config.numAttrs = 1;
    void* none[] = {nullptr};
    CHECK(cudaLaunchKernelExC(&config, kernel, none) == cudaSuccess);
    config.numAttrs = 2;
    check_refused(cudaLaunchKernelExC(&config, kernel, none), cudaErrorNotSupported);
}

TEST_CASE("virtual_gpu launch: parameters are copied at the call") {
    float* x = nullptr;
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&x), 4 * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMemset(x, 0, 4 * sizeof(float)) == cudaSuccess);
    float y = 3;
    void* arguments[] = {&x, &y};
    CHECK(cudaLaunchKernel(add_kernel(), 1, 4, arguments, 0, nullptr) == cudaSuccess);
    y = 100;
    float out[4] = {};
    CHECK(cudaMemcpy(out, x, sizeof out, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (const float value : out) CHECK(value == 3);
    CHECK(cudaFree(x) == cudaSuccess);
}
