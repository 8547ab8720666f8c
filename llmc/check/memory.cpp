// Copies within the device's memory: that all bytes arrive, and how many a second.
#include <algorithm>

#include "llmc/check/families.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr size_t kCopied = 250'007;             // numbers; a prime
constexpr size_t kSmallest = size_t{64} << 20;  // bytes that are timed
constexpr size_t kOfCache = 2,
                 kOfFreeMemory = 4;  // they are so many times the L2 cache; at most such a part of what is free
constexpr int kWarmUp = 1, kTimings = 3, kInOne = 4;

std::string check_copy(stream_t stream) {
    std::vector<uint32_t> values(kCopied);
    for (size_t i = 0; i < kCopied; i++) values[i] = static_cast<uint32_t>(i) * 2'654'435'761u;  // all differ
    Trial trial(stream);
    const uint32_t* inp = trial.input(values);
    uint32_t* out = trial.result<uint32_t>("copy", {{"", kCopied}});
    trial.run_twice([&] { copy_on_device(out, inp, kCopied * sizeof(uint32_t), stream); });
    trial.equal(out, values);
    return trial.problem();
}

// Bytes read and written a second: the median. Several copies, one behind the other, so that a launch does not count.
double copy_rate(stream_t stream) {
    const DeviceInfo device = device_info();
    size_t bytes = std::max(kSmallest, kOfCache * device.l2_cache);
    if (device.free_memory > 0) bytes = std::min(bytes, device.free_memory / kOfFreeMemory);
    if (bytes <= device.l2_cache) return 0;  // which would hold what is copied
    const GuardedMemory from(bytes, stream), to(bytes, stream);
    const event_t begin = create_event(true), end = create_event(true);
    std::vector<double> times;
    for (int i = 0; i < kWarmUp + kTimings; i++) {
        record(begin, stream);
        for (int copy = 0; copy < kInOne; copy++) copy_on_device(to.data(), from.data(), bytes, stream);
        record(end, stream);
        synchronize(end);
        if (i >= kWarmUp) times.push_back(static_cast<double>(elapsed_ms(begin, end)));
    }
    destroy_event(begin);
    destroy_event(end);
    std::nth_element(times.begin(), times.begin() + kTimings / 2, times.end());
    const double ms = times[kTimings / 2];
    return ms > 0 ? 2e3 * kInOne * static_cast<double>(bytes) / ms : 0;
}

}  // namespace

void add_memory(Items& items, const KernelUse&) { items.push_back({"copy", "memory", "", check_copy, copy_rate}); }

}  // namespace llmc::check
