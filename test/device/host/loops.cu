// Loops that replace kernels (llmc/kernels/host/launch.h): where they run, and the comparison with the kernels. In the
// tests kernels run, unless LLMC_LOOPS=alone.
#include "dev/emulator/loops.h"

#include "llmc/device/kernel.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/host/launch.h"
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
    host::launch_or_loop<ones_kernel, twos>({dim3(1), dim3(kCount), 0, stream}, out(x.get(), kCount), kCount);
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

TEST_CASE("loops run unless tests run kernels, and are recorded as the kernels whose work they do") {
    if (host::compares_loops()) return;  // otherwise loops run everywhere, and this one is wrong
    const char* setting = std::getenv("LLMC_LOOPS");
    const bool usual = host::runs_kernels();
    CHECK(usual == (!setting || std::strcmp(setting, "alone") != 0));
    const auto recorded = [usual](bool kernels) {
        host::runs_kernels() = kernels;
        host::record_operations(true);
        CHECK(launched_on(test_stream()) == (kernels ? 1.0f : 2.0f));
        const std::map<std::string, host::OperationRecord> operations = host::operations();
        host::record_operations(false);
        host::runs_kernels() = usual;
        return operations;
    };
    const auto of_kernel = recorded(true), of_loop = recorded(false);
    const auto row = std::find_if(of_kernel.begin(), of_kernel.end(), [](const auto& operation) {
        return operation.first.find("ones_kernel") != std::string::npos;
    });
    REQUIRE(row != of_kernel.end());
    REQUIRE(of_loop.contains(row->first));
    CHECK(of_loop.at(row->first).count == 1);
    CHECK(of_loop.at(row->first).bytes_written == row->second.bytes_written);
    CHECK(of_loop.at(row->first).bytes_read == row->second.bytes_read);
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
