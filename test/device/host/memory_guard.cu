// Mistakes that end the process or need settings at its start, tested from outside: guarded device memory
// (LLMC_GUARD=1), and reports of AddressSanitizer and UBSan about kernels.
#include <vector>

#include "dev/emulator/loops.h"
#include "dev/emulator/settings.h"
#include "llmc/device/kernel.cuh"
#include "test/device/arrays.h"
#include "test/device/host/child.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

int *kept_declared = nullptr, *kept_other = nullptr;  // allocated by one test case, used by the next

bool guarded() { return host::settings().guard; }

// A tensor that a kernel reaches without declaring it, through a pointer in memory, here in a struct.
struct Hidden {
    int* pointer;
};
__global__ void undeclared_write_kernel(int* out, Hidden hidden) {
    out[threadIdx.x] = 1;
    if (threadIdx.x == 3) hidden.pointer[threadIdx.x] = 1;
}
__global__ void undeclared_read_kernel(int* out, Hidden hidden) { out[threadIdx.x] = hidden.pointer[threadIdx.x]; }
__global__ void write_to_input_kernel(int* in) { in[threadIdx.x] = 1; }
__global__ void fill_kernel(int* out) { out[threadIdx.x] = static_cast<int>(threadIdx.x); }

constexpr int kDynamicLine = __LINE__ + 3;
__global__ void dynamic_overrun_kernel(int* out) {
    LLMC_DYNAMIC_SHARED(int, memory);
    memory[threadIdx.x + 1] = 1;
    out[threadIdx.x] = memory[threadIdx.x];
}
constexpr int kStaticLine = __LINE__ + 4;
__global__ void static_overrun_kernel(int* out) {
    LLMC_SHARED(int, memory, [50]);
    int* p = memory;
    p[threadIdx.x < 50 ? threadIdx.x : 50] = 1;
    out[threadIdx.x] = memory[0];
}
constexpr int kUnderrunLine = __LINE__ + 4;
__global__ void static_underrun_kernel(int* out) {
    LLMC_SHARED(int, memory, [64]);
    int* p = memory;
    if (threadIdx.x == 0) p[-1] = 1;
    out[threadIdx.x] = memory[0];
}
constexpr int kGlobalLine = __LINE__ + 1;
__global__ void one_beyond_kernel(int* out) { out[threadIdx.x + 1] = 1; }
constexpr int kFloat4Line = __LINE__ + 3;
__global__ void misaligned_float4_kernel(float* out) {
    float4* vectors = reinterpret_cast<float4*>(out + 1);
    vectors[threadIdx.x].x = 1;
}

template <auto kernel, class T>
void run_simple(size_t declared, size_t shared_bytes = 0) {
    DeviceArray<T> memory(declared);
    launch<kernel>({1, 64, shared_bytes, test_stream()}, inout(memory));
    synchronize(test_stream());
    std::puts("no report");
}

}  // namespace

// ---- in a guarded child ---------------------------------------------------------------------------------------------

TEST_CASE("child of memory guard: kernels" * doctest::skip()) {
    REQUIRE(guarded());
    kept_declared = static_cast<int*>(device_malloc(256));
    kept_other = static_cast<int*>(device_malloc(256));
    DeviceArray<int> declared(64), other(64);
    const auto launch_undeclared = [&](auto launcher) {
        const std::string message = error_of(launcher);
        CAPTURE(message);
        CHECK(message.find("access to device memory at") != std::string::npos);
        CHECK(message.find("that the launch did not declare") != std::string::npos);
        CHECK(message.find("[thread (") != std::string::npos);
        CHECK(message.find("launched at ") != std::string::npos);
        // The host device still works.
        launch<fill_kernel>({1, 64, 0, test_stream()}, out(declared));
        const std::vector<int> values = declared.download();
        int wrong = 0;
        for (int i = 0; i < 64; i++) wrong += values[static_cast<size_t>(i)] != i;
        CHECK(wrong == 0);
    };
    for (int repeat = 0; repeat < 3; repeat++) {
        launch_undeclared([&] {
            launch<undeclared_write_kernel>({1, 64, 0, test_stream()}, out(declared), Hidden{other.get()});
            synchronize(test_stream());
        });
        launch_undeclared([&] {
            launch<undeclared_read_kernel>({1, 64, 0, test_stream()}, out(declared), Hidden{other.get()});
            synchronize(test_stream());
        });
        launch_undeclared([&] {
            launch<write_to_input_kernel>({1, 64, 0, test_stream()}, {in(declared)}, declared.get());
            synchronize(test_stream());
        });
    }
    // With a declaration, the same accesses are legal.
    CHECK(error_of([&] {
              launch<undeclared_write_kernel>({1, 64, 0, test_stream()},
                                              {out(declared.get(), 64), out(other.get(), 64)}, declared.get(),
                                              Hidden{other.get()});
              synchronize(test_stream());
          }) == "");
}

// A second test case in the same process, without allocations, since test frameworks install their own signal handlers
// again.
TEST_CASE("child of memory guard: kernels again" * doctest::skip()) {
    CHECK(error_of([&] {
              launch<undeclared_read_kernel>({1, 64, 0, test_stream()}, {out(kept_declared, 64)}, kept_declared,
                                             Hidden{kept_other});
              synchronize(test_stream());
          }).find("did not declare") != std::string::npos);
}

TEST_CASE("child of memory guard: host reads" * doctest::skip()) {
    DeviceArray<int> memory(64);
    std::puts("before");
    std::fflush(stdout);
    volatile int* p = memory.get();
    std::printf("host code read %d\n", p[5]);
}

TEST_CASE("child of memory guard: host writes" * doctest::skip()) {
    volatile int* p = static_cast<int*>(device_malloc(256));  // closed from the start
    p[5] = 1;
    std::puts("host code wrote");
}

// ASan reports it itself and ends the process (see below). TSan allows no jump out of a signal handler.
#if !LLMC_ASAN && !LLMC_TSAN
TEST_CASE("memory guard: undeclared tensors are reported") {
    const ChildResult first = run_child("child of memory guard: kernels*", "LLMC_GUARD=1");
    CAPTURE(first.output);
    CHECK(first.exit_code == 0);
    CHECK(first.says("2 passed"));
    const ChildResult lazy = run_child("child of memory guard: kernels*", "LLMC_GUARD=1 LLMC_STREAMS=lazy");
    CAPTURE(lazy.output);
    CHECK(lazy.exit_code == 0);
    CHECK(lazy.says("2 passed"));
}
#endif

TEST_CASE("memory guard: host code that touches device memory ends the process") {
    for (const char* what : {"child of memory guard: host reads", "child of memory guard: host writes"}) {
        const ChildResult guarded_child = run_child(what, "LLMC_GUARD=1");
        CAPTURE(guarded_child.output);
        CHECK(guarded_child.exit_code != 0);
        CHECK(guarded_child.says("host code touched device memory at 0x"));
        CHECK(!guarded_child.says("host code read"));
        CHECK(!guarded_child.says("host code wrote"));
    }
    const ChildResult unguarded = run_child("child of memory guard: host reads", "LLMC_GUARD=0");
    CHECK(unguarded.exit_code == 0);
    CHECK(unguarded.says("host code read -1"));
}

TEST_CASE("settings: an invalid value is refused by name") {
    const std::pair<const char*, const char*> cases[] = {
        {"LLMC_ORDER=backwards", ": expected one of ascending, descending, random"},
        {"LLMC_SHARED_KB=100", ": expected one of 227, 163, 99"},
        {"LLMC_SYNC=yes", ": expected one of 0, 1"},
        {"LLMC_LOOPS=some", ": expected one of alone, compare"},
        {"LLMC_SEED=x", " in the environment: expected a whole number from 0 to 4294967295"},
        {"LLMC_FAULT=soon", " in the environment: expected a whole number from 0 to "},
        {"LLMC_FLIP=update_kernel", ": expected WORK:N, as in update_kernel:3"},
        {"LLMC_DELAY=update_kernel:3s", ": expected WORK:N, as in update_kernel:3"},
    };
    for (const auto& [assignment, text] : cases) {
        const ChildResult child = run_child("child of settings", assignment);
        CAPTURE(child.output);
        CHECK(child.exit_code != 0);
        CHECK(child.says(std::string(assignment) + text));
    }
}

TEST_CASE("child of settings" * doctest::skip()) {
    test_stream();
    host::emulator_settings();
    host::runs_kernels();
    std::printf("%zu KB, %s\n", device_info().shared_memory_per_block >> 10, waits_after_work() ? "waits" : "goes on");
}
TEST_CASE("settings: LLMC_SHARED_KB and LLMC_SYNC") {
    CHECK(run_child("child of settings", "LLMC_SHARED_KB= LLMC_SYNC=0").says("expected one of 227"));
    CHECK(run_child("child of settings", "LLMC_SHARED_KB=227 LLMC_SYNC=0").says("227 KB, goes on"));
    CHECK(run_child("child of settings", "LLMC_SHARED_KB=163 LLMC_SYNC=1").says("163 KB, waits"));
    CHECK(run_child("child of settings", "LLMC_SHARED_KB=99").says("99 KB"));
}

// ---- under AddressSanitizer and UBSan -------------------------------------------------------------------------------

#if LLMC_ASAN

TEST_CASE("child of sanitizers: dynamic" * doctest::skip()) { run_simple<dynamic_overrun_kernel, int>(64, 256); }
TEST_CASE("child of sanitizers: static" * doctest::skip()) { run_simple<static_overrun_kernel, int>(64); }
TEST_CASE("child of sanitizers: underrun" * doctest::skip()) { run_simple<static_underrun_kernel, int>(64); }
TEST_CASE("child of sanitizers: global" * doctest::skip()) { run_simple<one_beyond_kernel, int>(64); }
TEST_CASE("child of sanitizers: float4" * doctest::skip()) { run_simple<misaligned_float4_kernel, float>(512); }
// Under guard a declaration is checked to the byte: the tensor is larger than its declaration.
TEST_CASE("child of sanitizers: declared" * doctest::skip()) {
    DeviceArray<int> memory(65);
    launch<one_beyond_kernel>({1, 64, 0, test_stream()}, {out(memory.get(), 64)}, memory.get());
    synchronize(test_stream());
    std::puts("no report");
}

TEST_CASE("sanitizers: overruns and misaligned accesses are reported at their line") {
    const auto expect = [](const char* what, const char* text, int line, const char* environment = "LLMC_GUARD=0") {
        const ChildResult child = run_child(std::string("child of sanitizers: ") + what, environment);
        CAPTURE(child.output);
        CHECK(child.exit_code != 0);
        CHECK(child.says(text));
        CHECK(child.says(fmt::format("memory_guard.cu:{}", line)));
        CHECK(!child.says("no report"));
    };
    expect("dynamic", "ERROR: AddressSanitizer: use-after-poison", kDynamicLine);
    expect("static", "ERROR: AddressSanitizer: use-after-poison", kStaticLine);
    expect("underrun", "ERROR: AddressSanitizer", kUnderrunLine);
    expect("global", "ERROR: AddressSanitizer: use-after-poison", kGlobalLine);
    expect("float4", "misaligned address", kFloat4Line);
    expect("declared", "ERROR: AddressSanitizer: use-after-poison", kGlobalLine, "LLMC_GUARD=1");
    const ChildResult fine = run_child("child of sanitizers: declared", "LLMC_GUARD=0");
    CHECK(fine.exit_code == 0);
    CHECK(fine.says("no report"));
}

#endif
