// Traces with lazy streams: a range has the time at which the stream reaches it, not that of its submission.
#include "llmc/device/trace.h"

#include <vector>

#include "llmc/device/host/settings.h"
#include "llmc/device/kernel.cuh"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int N = 1000;

__global__ void fill_kernel(float* out, float value, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = value;
}

struct Lazy {
    host::Settings saved = host::settings();
    explicit Lazy(bool random) {
        test_stream();
        synchronize_device();
        host::settings().lazy_streams = true;
        host::settings().random_streams = random;
    }
    ~Lazy() {
        synchronize_device();
        host::settings() = saved;
    }
};

// Ranges "first" on one stream and "second" on another, which waits for it or should. Returns how often the second came
// too early.
int too_early(bool with_wait) {
    const stream_t a = create_stream(), b = create_stream();
    const event_t done = create_event();
    DeviceArray<float> x(N);
    Trace trace(100);
    trace.start(a);
    for (int i = 0; i < 50; i++) {
        {
            ProfileRange range("first", a);
            launch<fill_kernel>({4, 256, 0, a}, {out(x.get(), N)}, x.get(), 1.0f, N);
        }
        record(done, a);
        if (with_wait) wait(b, done);
        ProfileRange range("second", b);
        launch<fill_kernel>({4, 256, 0, b}, {out(x.get(), N)}, x.get(), 2.0f, N);
    }
    synchronize(b);
    const std::vector<Trace::Range> ranges = trace.finish();
    REQUIRE(ranges.size() == 100);
    int early = 0;
    for (size_t i = 0; i < ranges.size(); i += 2) {
        early += ranges[i + 1].begin < ranges[i].end;
        CHECK(ranges[i].begin < ranges[i].end);
    }
    destroy_stream(a);
    destroy_stream(b);
    destroy_event(done);
    return early;
}

}  // namespace

TEST_CASE("host trace: a missing wait shows in the times, and a wait does not") {
    for (const bool random : {false, true}) {
        CAPTURE(random);
        const Lazy lazy(random);
        CHECK(too_early(true) == 0);
        CHECK(too_early(false) > 10);
    }
}

TEST_CASE("host trace: lazy work is timed when it runs") {
    const Lazy lazy(false);
    DeviceArray<float> x(N);
    const stream_t stream = create_stream();
    Trace trace(4);
    trace.start(stream);
    {
        ProfileRange range("submitted early", stream);
        launch<fill_kernel>({4, 256, 0, stream}, {out(x.get(), N)}, x.get(), 1.0f, N);
    }
    { ProfileRange range("meanwhile"); }
    const std::vector<Trace::Range> ranges = trace.finish();
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[1].end <= ranges[0].begin);
    destroy_stream(stream);
}
