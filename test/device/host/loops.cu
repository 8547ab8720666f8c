// Loops that replace kernels (llmc/kernels/host/launch.h): which streams run them, and the comparison with the kernels.
#include "llmc/kernels/host/launch.h"

#include "llmc/device/kernel.cuh"
#include "llmc/device/runtime.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kCount = 64;

__global__ void ones_kernel(float* to, int n) {
    if (static_cast<int>(threadIdx.x) < n) to[threadIdx.x] = 1.0f;
}
void twos(const host::Grid&, float* to, int n) {
    for (int i = 0; i < n; i++) to[i] = 2.0f;
}

float launched_on(stream_t stream) {
    DeviceArray<float> x(kCount);
    host::launch_or_loop<ones_kernel, twos>(KernelVariant::host_norm, {dim3(1), dim3(kCount), 0, stream},
                                            out(x.get(), kCount), kCount);
    synchronize(stream);
    return x.download()[kCount - 1];
}

// The report of run_both() for a kernel and a loop that each add to the existing numbers.
std::string difference(float of_kernel, float of_loop) {
    std::vector<float> x(kCount, 1.0f);
    const auto add = [&](float number) { return [&x, number] { x[5] += number, x[9] += number; }; };
    try {
        host::run_both({inout(x.data(), kCount)}, {"k", "f", 1}, add(of_kernel), add(of_loop));
    } catch (const Error& error) {
        return error.what();
    }
    CHECK((x[5] == 1.0f + of_loop || of_loop != of_loop));  // applied once, to the kernel's input
    return "";
}

}  // namespace

TEST_CASE("loops run on the streams for which their family was chosen") {
    if (host::compares_loops()) return;  // otherwise loops run everywhere, and this one is wrong
    test_stream();
    const stream_t stream = create_stream();
    CHECK(launched_on(stream) == 1.0f);
    KernelSet kernels;
    kernels.add(KernelVariant::host_attention);
    choose_kernels(stream, kernels);
    CHECK(launched_on(stream) == 1.0f);
    kernels.add(KernelVariant::host_norm);
    choose_kernels(stream, kernels);
    CHECK(launched_on(stream) == 2.0f);
    CHECK(launched_on(nullptr) == 1.0f);
    choose_kernels(stream, {});
    CHECK(launched_on(stream) == 1.0f);
    destroy_stream(stream);
}

TEST_CASE("a loop that differs from its kernel is named with the place") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(difference(0.5f, 0.5f) == "");
    CHECK(difference(nan, -nan) == "");
    CHECK(
        difference(0.5f, 0.25f) ==
        "the loop writes other numbers than the kernel: 2 words of 64 in tensor 0, from byte 20 on [kernel k launched "
        "at f:1]");
    CHECK(difference(nan, 0.25f) != "");
}
