// Features of the host device's runtime: lazy streams that expose missing waits, refusal of host and stale pointers,
// and the record of operations.
#include "llmc/device/host/runtime.h"

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/host/changed_settings.h"
#include "test/device/streams.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

__global__ void failing_kernel(float* out) {
    if (threadIdx.x < 10) __syncthreads();
    out[threadIdx.x] = 1;
}

void check_refused(const std::function<void()>& action, const std::string& text) {
    const std::string message = error_of(action);
    CAPTURE(message);
    CHECK_MESSAGE(contains(message, text), text);
}

// Stream b reads a buffer that stream a fills, with or without waiting for it.
float sum_on_other_stream(Streams& s, bool wait_for_it) {
    fill(s.x, 0, s.a);
    fill(s.y, 2, s.b);
    synchronize_device();
    fill(s.x, 5, s.a);
    record(s.first, s.a);
    if (wait_for_it) wait(s.b, s.first);
    add(s.sum, s.x, s.y, s.b);
    float* staging = static_cast<float*>(pinned_malloc(4 * N));
    copy_to_host(staging, s.sum, 4 * N, s.b);
    synchronize(s.b);
    const float result = staging[N - 1];
    pinned_free(staging);
    return result;
}

}  // namespace

TEST_CASE("host runtime: a missing event wait shows in lazy mode only") {
    for (const bool lazy : {false, true}) {
        const ChangedSettings settings(lazy);
        Streams s;
        CHECK(sum_on_other_stream(s, true) == 7);
        CHECK(sum_on_other_stream(s, false) == (lazy ? 2 : 7));
    }
}

TEST_CASE("host runtime: a stream that overwrites what another one still reads shows in random mode") {
    for (const bool waits : {true, false}) {
        const ChangedSettings settings(true, true);
        int wrong = 0, tries = 0;  // about one try in thirty overtakes
        for (; tries < 100 || (!waits && wrong == 0 && tries < 3000); tries++) {
            Streams s;
            fill(s.x, 2, s.a);
            fill(s.y, 5, s.a);
            add(s.sum, s.x, s.y, s.a);
            record(s.first, s.a);
            if (waits) wait(s.b, s.first);
            fill(s.x, 100, s.b);
            synchronize(s.a);
            wrong += s.sum.download()[0] != 7;
        }
        CHECK((wrong > 0) == !waits);
        CHECK(wrong < tries);
    }
}

TEST_CASE("host runtime: lazy work runs only when needed, and in order") {
    const ChangedSettings settings(true);
    Streams s;
    float* staging = static_cast<float*>(pinned_malloc(4 * N));
    staging[0] = -1;
    fill(s.x, 1, s.a);
    fill(s.x, 2, s.a);
    copy_to_host(staging, s.x, 4 * N, s.a);
    record(s.first, s.a);
    fill(s.x, 3, s.a);
    CHECK(!is_done(s.first));
    CHECK(staging[0] == -1);
    synchronize(s.b);  // another stream
    CHECK(staging[0] == -1);
    synchronize(s.first);
    CHECK(is_done(s.first));
    CHECK(staging[0] == 2);
    copy_to_host(staging, s.x, 4 * N, s.a);
    synchronize(s.a);
    CHECK(staging[0] == 3);
    pinned_free(staging);
}

TEST_CASE("host runtime: arguments are copied at the launch") {
    const ChangedSettings settings(true);
    Streams s;
    float value = 4;
    fill(s.x, value, s.a);
    value = 9;
    synchronize(s.a);
    CHECK(s.x.download()[0] == 4);
}

TEST_CASE("host runtime: freeing memory waits for the work that uses it") {
    const ChangedSettings settings(true);
    Streams s;
    float* p = static_cast<float*>(device_malloc(4 * N));
    fill(p, 3, s.a);
    add(s.sum, p, p, s.a);
    device_free(p);
    CHECK(s.sum.download()[0] == 6);
}

TEST_CASE("host runtime: reading a value back allocates nothing, so it only waits for its own stream") {
    const ChangedSettings settings(true);
    Streams s;
    read_back(s.x.get(), s.a);
    fill(s.x, 3, s.a);
    fill(s.y, 4, s.b);
    record(s.first, s.b);
    CHECK(read_back(s.x.get(), s.a) == 3);
    CHECK(!is_done(s.first));
    write_through(s.x.get(), 5.0f, s.a);
    CHECK(!is_done(s.first));
    synchronize(s.b);
    CHECK(is_done(s.first));
}

TEST_CASE("host runtime: an error of lazy work shows at its synchronisation, and the queue continues") {
    const ChangedSettings settings(true);
    Streams s;
    launch<failing_kernel>({1, 32, 0, s.a}, out(s.x));
    fill(s.x, 8, s.a);
    check_refused([&] { synchronize(s.a); }, "barrier divergence");
    synchronize(s.a);
    CHECK(s.x.download()[0] == 8);
}

TEST_CASE("host runtime: work without a stream runs at once, after all queued work") {
    const ChangedSettings settings(true);
    Streams s;
    fill(s.x, 1, s.a);
    fill(s.y, 2, s.b);
    add(s.sum, s.x, s.y, nullptr);
    float staging[N];
    copy_to_host(staging, s.sum, sizeof staging, nullptr);
    CHECK(staging[0] == 3);
}

TEST_CASE("host runtime: double and foreign frees are refused") {
    test_stream();
    char* p = static_cast<char*>(device_malloc(1000));
    check_refused([&] { device_free(p + 256); }, "is not live device memory");
    device_free(p);
    check_refused([&] { device_free(p); }, "is not live device memory");
    int local = 0;
    check_refused([&] { device_free(&local); }, "is not live device memory");
}

TEST_CASE("host runtime: freed memory is used again") {
    test_stream();
    void* first = device_malloc(5000);
    device_free(first);
    for (int i = 0; i < 100; i++) {
        void* p = device_malloc(5000);
        CHECK(p == first);
        device_free(p);
    }
}

TEST_CASE("host runtime: copies refuse pointers of the wrong kind and overruns") {
    DeviceArray<float> x(16), y(16);
    std::vector<float> host_memory(32);
    const stream_t stream = test_stream();
    check_refused([&] { copy_to_device(host_memory.data(), host_memory.data(), 4, stream); },
                  "copy_to_device: host pointer");
    check_refused([&] { copy_to_device(x, y, 4, stream); }, "copy_to_device: device pointer");
    check_refused([&] { copy_to_host(host_memory.data(), host_memory.data(), 4, stream); },
                  "copy_to_host: host pointer");
    check_refused([&] { copy_to_host(x, y, 4, stream); }, "copy_to_host: device pointer");
    check_refused([&] { copy_on_device(x, host_memory.data(), 4, stream); }, "copy_on_device: host pointer");
    check_refused([&] { set_bytes(host_memory.data(), 0, 4, stream); }, "set_bytes: host pointer");
    check_refused([&] { copy_to_device(x, host_memory.data(), 65, stream); }, "65 bytes at");
    check_refused([&] { copy_to_host(host_memory.data(), x.get() + 1, 64, stream); }, "beyond their allocation");
    check_refused([&] { copy_on_device(x, y.get() + 15, 8, stream); }, "beyond their allocation");
    check_refused([&] { set_bytes(x.get() + 16, 0, 1, stream); }, "beyond their allocation");
    CHECK(host::is_device_pointer(x.get()));
    CHECK(!host::is_device_pointer(host_memory.data()));
}

TEST_CASE("host runtime: operations are recorded with their bytes") {
    const ChangedSettings settings(true);
    Streams s;
    fill(s.x, 1, s.a);
    synchronize(s.a);
    host::record_operations(true);
    CHECK(host::operations().empty());
    fill(s.x, 1, s.a);
    add(s.sum, s.x, s.x, s.a);
    add(s.sum, s.x, s.y, s.a);
    set_bytes(s.y, 0, 12, s.a);
    copy_on_device(s.y, s.x, 40, s.a);
    CHECK(host::operations().empty());  // lazy: nothing has run yet
    synchronize(s.a);
    host::record_operations(false);
    fill(s.x, 2, s.a);
    synchronize(s.a);

    const auto find = [](const std::string& name) {
        for (const auto& [key, record] : host::operations())
            if (key.find(name) != std::string::npos) return record;
        return host::OperationRecord{};
    };
    CHECK(host::operations().size() == 4);
    const auto check = [&](const char* name, size_t count, size_t read, size_t written) {
        CAPTURE(name);
        const host::OperationRecord record = find(name);
        CHECK(record.count == count);
        CHECK(record.bytes_read == read);
        CHECK(record.bytes_written == written);
        CHECK(record.seconds >= 0);
    };
    check("fill_kernel", 1, 0, 4 * N);
    check("add_kernel", 2, 16 * N, 8 * N);
    check("set_bytes", 1, 0, 12);
    check("copy_on_device", 1, 40, 40);
    host::record_operations(true);
    CHECK(host::operations().empty());
    host::record_operations(false);
}
