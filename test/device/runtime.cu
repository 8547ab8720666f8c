// The device runtime as both devices implement it: copies, streams ordered by events, and memory accounting.
#include "llmc/device/runtime.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/streams.h"

using namespace llmc;
using namespace llmc::test;

namespace {

bool all_are(const DeviceArray<float>& array, float value) {
    const std::vector<float> values = array.download();
    return std::all_of(values.begin(), values.end(), [=](float v) { return v == value; });
}

}  // namespace

TEST_CASE("runtime: the device is named and its memory known") {
    test_stream();
    CHECK(device_count() >= 1);
    const DeviceInfo info = device_info();
    CHECK(!info.name.empty());
    CHECK(info.total_memory > (size_t{64} << 20));
    CHECK(info.free_memory > 0);
    CHECK(info.free_memory <= info.total_memory);
    CHECK(info.multiprocessors >= 1);
    CHECK(info.is_host == (info.compute_capability == 0));
}

TEST_CASE("runtime: copies and byte fills arrive, to the byte") {
    std::vector<uint8_t> bytes(1001);
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i * 37);
    DeviceArray<uint8_t> from(bytes), to(1001);
    copy_on_device(to.get() + 1, from.get() + 3, 990, test_stream());
    set_bytes(to.get() + 500, 0xA7, 3, test_stream());
    const std::vector<uint8_t> result = to.download();
    int wrong = 0;
    for (size_t i = 0; i < result.size(); i++) {
        const uint8_t copied = i >= 1 && i < 991 ? bytes[i + 2] : 0xFF;  // the rest keeps the poison of DeviceArray
        wrong += result[i] != (i >= 500 && i < 503 ? 0xA7 : copied);
    }
    CHECK(wrong == 0);
    CHECK(from.download() == bytes);
}

TEST_CASE("runtime: streams are ordered by events") {
    Streams s;
    for (int round = 0; round < 3; round++) {
        const float value = static_cast<float>(round * 10);
        fill(s.x, value + 5, s.a);
        record(s.first, s.a);
        fill(s.y, 2, s.b);
        wait(s.b, s.first);
        add(s.sum, s.x, s.y, s.b);
        record(s.second, s.b);
        wait(s.a, s.second);
        fill(s.x, -1, s.a);  // must not overtake the sum
        synchronize(s.second);
        CHECK(is_done(s.second));
        synchronize(s.a);
        CHECK(all_are(s.sum, value + 7));
    }
    CHECK(is_done(s.first));
    CHECK(elapsed_ms(s.first, s.second) >= 0);
    synchronize_device();
}

TEST_CASE("runtime: streams have their priority") {
    Streams s;
    const OwnedStream first = create_stream(StreamPriority::communication);
    CHECK(stream_priority(first) == StreamPriority::communication);
    CHECK(stream_priority(s.a) == StreamPriority::normal);
}

TEST_CASE("runtime: waiting for an event that was never recorded is no wait") {
    Streams s;
    wait(s.a, s.first);
    CHECK(is_done(s.first));
    synchronize(s.first);
    synchronize(s.a);
}

TEST_CASE("runtime: an event may be recorded again or destroyed while somebody waits for it") {
    Streams s;
    fill(s.x, 1, test_stream());
    fill(s.y, 1, test_stream());
    synchronize(test_stream());

    fill(s.x, 5, s.a);
    record(s.first, s.a);
    wait(s.c, s.first);
    fill(s.y, 3, s.b);
    record(s.first, s.b);  // the wait above is for the first record
    add(s.sum, s.x, s.y, s.c);
    synchronize(s.c);
    const float value = s.sum.download()[0];
    CHECK((value == 6 || value == 8));  // x is always 5; y is 1 or 3
    synchronize(s.b);

    const event_t brief = create_event();
    fill(s.x, 9, s.a);
    record(brief, s.a);
    wait(s.c, brief);
    destroy_event(brief);
    add(s.sum, s.x, s.y, s.c);
    synchronize(s.c);
    CHECK(all_are(s.sum, 12));
}

TEST_CASE("runtime: memory is counted and aligned") {
    test_stream();
    const size_t before = device_bytes_in_use();
    void* small = device_malloc(100);
    const size_t with_small = device_bytes_in_use();
    CHECK(with_small >= before + 100);
    CHECK(with_small <= before + 100 + 4096);
    void* large = device_malloc(size_t{3} << 20);
    CHECK(device_bytes_in_use() >= with_small + (size_t{3} << 20));
    for (void* p : {small, large}) CHECK(reinterpret_cast<uintptr_t>(p) % 256 == 0);
    CHECK(small != large);
    device_free(large);
    CHECK(device_bytes_in_use() == with_small);
    device_free(small);
    CHECK(device_bytes_in_use() == before);
    device_free(nullptr);
    CHECK(device_bytes_in_use() == before);
    void* empty = device_malloc(0);
    CHECK(empty != nullptr);
    device_free(empty);
    CHECK(device_bytes_in_use() == before);
}

TEST_CASE("runtime: the peak of memory can be forgotten, down to what is in use") {
    test_stream();
    void* const kept = device_malloc(1 << 10);
    device_free(device_malloc(size_t{3} << 20));
    const MemoryUse most = device_memory_use(MemoryKind::workspace);
    CHECK(most.peak >= most.bytes + (size_t{3} << 20));
    forget_memory_peaks();
    const MemoryUse now = device_memory_use(MemoryKind::workspace);
    CHECK(now.bytes == most.bytes);
    CHECK(now.peak == now.bytes);
    device_free(kept);
    CHECK(device_memory_use(MemoryKind::workspace).peak == now.peak);
}

TEST_CASE("runtime: too large an allocation ends with its own exit code") {
    test_stream();
    const size_t before = device_bytes_in_use();
    try {
        device_malloc(size_t{1} << 50);
        CHECK(false);
    } catch (const Error& e) {
        CHECK(e.code() == ExitCode::no_resources);
        CHECK(std::string(e.what()).find("MiB needed") != std::string::npos);
    }
    CHECK(device_bytes_in_use() == before);
}
