// A device that is lost in the middle of a run: the error message reaches the caller whatever objects are alive, and
// with LLMC_SYNC=1 it names the work.
#include "llmc/comm/operation_log.h"
#include "llmc/device/device_errors.h"

#include <functional>
#include <memory>
#include <string>

#include "llmc/device/host/runtime.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/trace.h"
#include "llmc/shard/arena.h"
#include "llmc/train/step_results.h"
#include "test/device/arrays.h"
#include "test/device/host/changed_settings.h"
#include "test/device/host/child.h"
#include "test/model/gpt2_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

__global__ void first_kernel(float* out) { out[threadIdx.x] = 1; }
__global__ void second_kernel(float* out) { out[threadIdx.x] = 2; }
__global__ void diverging_kernel(float* out) {
    if (threadIdx.x < 10) __syncthreads();
    out[threadIdx.x] = 1;
}

// The modes of one test. The device works before and after it.
struct Mode {
    const ChangedSettings settings;
    const bool waits = waits_after_work();
    Mode(bool lazy, bool wait) : settings(lazy) { waits_after_work() = wait; }
    ~Mode() {
        host::inject_fault(0);
        tear_down([] { synchronize_device(); });
        waits_after_work() = waits;
    }
};

// Message and exit code of the error that `action` throws.
struct Caught {
    std::string message;
    ExitCode code = ExitCode::ok;
    bool says(const std::string& text) const { return message.find(text) != std::string::npos; }
};
Caught error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return {error.what(), error.code()};
    }
    return {};
}

void launch_both(float* p) {
    launch<first_kernel>({1, 32, 0, test_stream()}, {out(p, 32)}, p);
    launch<second_kernel>({1, 32, 0, test_stream()}, {out(p, 32)}, p);
}

constexpr char kLate[] = "the device failed (LLMC_FAULT); it happened in some earlier launch; LLMC_SYNC=1 names it";

}  // namespace

TEST_CASE("faults: every call after a fault fails, and says that it happened before") {
    for (const bool lazy : {false, true}) {
        CAPTURE(lazy);
        Mode mode(lazy, false);
        DeviceArray<float> x(32);
        const event_t event = create_event(true);
        record(event, test_stream());
        synchronize(event);
        void* memory = device_malloc(64);
        const stream_t stream = create_stream();
        host::inject_fault(2);
        CHECK(error_of([&] { launch_both(x); }).message == "");  // asynchronous, so the fault is not known yet
        const Caught found = error_of([&] { synchronize(test_stream()); });
        CHECK(found.message == std::string("found at synchronize: ") + kLate);
        CHECK(found.code == ExitCode::failure);

        const std::pair<const char*, std::function<void()>> calls[] = {
            {"launch of", [&] { launch_both(x); }},
            {"copy_on_device", [&] { copy_on_device(x, x + 1, 4, test_stream()); }},
            {"set_bytes", [&] { set_bytes(x, 0, 4, test_stream()); }},
            {"synchronize", [&] { synchronize(test_stream()); }},
            {"synchronize", [&] { synchronize(event); }},
            {"synchronize_device", [&] { synchronize_device(); }},
            {"record", [&] { record(event, test_stream()); }},
            {"wait", [&] { wait(test_stream(), event); }},
            {"is_done", [&] { is_done(event); }},
            {"elapsed_ms", [&] { elapsed_ms(event, event); }},
            {"device_info", [&] { device_info(); }},
            {"device_malloc", [&] { device_malloc(64); }},
            {"pinned_malloc", [&] { pinned_malloc(64); }},
            {"pinned_free", [&] { pinned_free(nullptr); }},
            {"create_stream", [&] { create_stream(); }},
            {"create_event", [&] { create_event(); }},
            {"device_free", [&] { device_free(memory); }},
            {"destroy_stream", [&] { destroy_stream(stream); }},
            {"destroy_event", [&] { destroy_event(event); }},
        };
        for (const auto& [name, call] : calls) {
            const Caught again = error_of(call);
            CAPTURE(name);
            CAPTURE(again.message);
            CHECK(again.says(std::string("found at ") + name));
            CHECK(again.says(kLate));
        }
        host::inject_fault(0);
        launch_both(x);
        CHECK(x.download()[0] == 2);
    }
}

TEST_CASE("faults: with LLMC_SYNC=1 the failing launch is named") {
    for (const bool lazy : {false, true}) {
        CAPTURE(lazy);
        Mode mode(lazy, true);
        DeviceArray<float> x(32);
        host::inject_fault(2);
        const Caught found = error_of([&] { launch_both(x); });
        CAPTURE(found.message);
        CHECK(found.says("second_kernel failed: the device failed (LLMC_FAULT) [launched at "));
        CHECK(found.says("device_errors.cu:"));
        CHECK(!found.says("LLMC_SYNC"));
        host::inject_fault(0);
    }
}

TEST_CASE("faults: one bit flips, once, in the named work") {
    for (const bool lazy : {false, true}) {
        CAPTURE(lazy);
        Mode mode(lazy, false);
        DeviceArray<float> x(32);
        host::settings().flip = {"second_kernel", 2};
        for (int i = 0; i < 3; i++) {
            launch_both(x);
            std::vector<float> expected(32, 2.0f);
            if (i == 1) expected[16] = float_from_bits(float_bits(2.0f) ^ 0x40u);  // in the middle of the tensor
            CHECK(x.download() == expected);
        }
    }
}

// An error passes while every kind of object that owns streams, events or memory is alive.
TEST_CASE("faults: an error passes while every kind of object is alive") {
    const Gpt2Fixture fixture;
    const Batch batch = fixture_batch(fixture, 0);
    const auto B = fixture.integer("batch"), T = fixture.integer("seq");
    for (const bool lazy : {false, true}) {
        for (const int work : {1, 30, 60}) {
            for (const bool fault : {true, false}) {  // a lost device, or a failing kernel on a working one
                CAPTURE(lazy);
                CAPTURE(work);
                CAPTURE(fault);
                Mode mode(lazy, false);
                const Caught found = error_of([&] {
                    Arena arena(MemoryKind::workspace);
                    float* memory = nullptr;
                    arena.plan(&memory, 64);
                    arena.allocate();
                    const Fp8Config fp8;
                    TestModel<bf16> m(fixture_config(fixture), B, T, Recompute::none, &fp8);
                    m.load(fixture);
                    Trace trace(8);
                    trace.start(m.stream);
                    PeerWaits waits(std::make_shared<OperationLog>());
                    StepResults results(waits);
                    results.begin(false, m.stream);
                    const ProfileRange range("step", m.stream);
                    if (fault) host::inject_fault(static_cast<uint64_t>(work));
                    m.model.train_micro_step({batch.tokens.data(), batch.targets.data()}, {1.0f}, m.stream);
                    if (!fault) launch<diverging_kernel>({1, 32, 0, m.stream}, {out(memory, 64)}, memory);
                    synchronize(m.stream);
                });
                CAPTURE(found.message);
                CHECK(found.says(fault ? kLate : "barrier divergence"));
                CHECK(found.code == ExitCode::failure);
            }
        }
    }
}

TEST_CASE("child of faults: teardown" * doctest::skip()) {
    test_stream();
    Arena first(MemoryKind::workspace), second(MemoryKind::workspace);
    float* memory = nullptr;
    for (Arena* arena : {&first, &second}) {
        arena->plan(&memory, 64);
        arena->allocate();
    }
    host::inject_fault(1);
    set_bytes(memory, 0, 4, test_stream());
}
TEST_CASE("faults: a failure that only shows during teardown is reported once") {
    const ChildResult child = run_child("child of faults: teardown", "LLMC_STREAMS=now");
    CAPTURE(child.output);
    CHECK(child.exit_code == 0);
    const std::string text = "while the run was taken down: found at device_free: the device failed";
    CHECK(child.says(text));
    CHECK(child.output.find(text) == child.output.rfind(text));
}

TEST_CASE("child of faults: failing work left behind" * doctest::skip()) {
    DeviceArray<float> x(32);
    launch<diverging_kernel>({1, 32, 0, test_stream()}, out(x));
}
TEST_CASE("faults: work that fails after the end of a test fails the test") {
    const ChildResult child = run_child("child of faults: failing work*", "LLMC_STREAMS=lazy");
    CAPTURE(child.output);
    CHECK(child.exit_code == 1);
    CHECK(child.says("barrier divergence"));
}
