// Compares the loops with their kernels: see loops.h.
// build: per device, optimized
#include "dev/emulator/loops.h"

#include <cstring>

#include "llmc/device/formats.cuh"
#include "llmc/device/host/settings.h"

namespace llmc::host {

// LLMC_LOOPS
enum class Loops { none, alone, compare };
static Loops setting() {
    static const int choice = choice_from_environment("LLMC_LOOPS", {"", "alone", "compare"});
    return static_cast<Loops>(choice);
}

bool& runs_kernels() {
    static bool runs = setting() != Loops::alone;
    return runs;
}

bool compares_loops() { return setting() == Loops::compare && runs_kernels(); }

namespace {

using Bytes = std::vector<char>;

std::vector<Bytes> copies_of(const std::vector<Access>& accesses) {
    std::vector<Bytes> copies;
    for (const Access& a : accesses) {
        const char* from = static_cast<const char*>(a.address);
        copies.push_back(a.writes && from ? Bytes(from, from + a.bytes) : Bytes());
    }
    return copies;
}

// The bits of a NaN are not specified. Bytes may differ if both words, or both of their halves, are NaN as FP32 or
// BF16.
bool same_number(const char* a, const char* b) {
    uint32_t x, y;
    std::memcpy(&x, a, 4);
    std::memcpy(&y, b, 4);
    const auto nan = [](uint32_t bits) { return (bits & kFloatMagnitudeMask) > kFloatInfinityBits; };
    const auto same_half = [&](uint32_t p, uint32_t q) { return p == q || (nan(p << 16) && nan(q << 16)); };
    return x == y || (nan(x) && nan(y)) || (same_half(x & 0xffffu, y & 0xffffu) && same_half(x >> 16, y >> 16));
}

// Finds the first byte of `actual` that differs from `expected`, and counts the words that differ.
struct Difference {
    size_t first = 0, words = 0;
    Difference(const Bytes& actual, const Bytes& expected) {
        const size_t whole = actual.size() / 4 * 4;
        if (std::memcmp(actual.data() + whole, expected.data() + whole, actual.size() - whole) != 0) {
            first = whole;
            words = 1;
        }
        for (size_t at = whole; at > 0; at -= 4)
            if (!same_number(&actual[at - 4], &expected[at - 4])) {
                first = at - 4;
                words++;
            }
    }
};

}  // namespace

void run_both(const std::vector<Access>& accesses, const LaunchSite& site, const std::function<void()>& kernel,
              const std::function<void()>& loop) {
    const std::vector<Bytes> before = copies_of(accesses);
    kernel();
    const std::vector<Bytes> expected = copies_of(accesses);
    for (size_t i = 0; i < accesses.size(); i++)
        if (!before[i].empty()) std::memcpy(const_cast<void*>(accesses[i].address), before[i].data(), before[i].size());
    loop();
    const std::vector<Bytes> actual = copies_of(accesses);
    for (size_t i = 0; i < accesses.size(); i++) {
        if (actual[i] == expected[i]) continue;
        const Difference difference(actual[i], expected[i]);
        if (difference.words == 0) continue;
        throw Error(ExitCode::failure,
                    "the loop writes other numbers than the kernel: {} words of {} in tensor {}, from byte {} on "
                    "[kernel {} launched at {}:{}]",
                    difference.words, (actual[i].size() + 3) / 4, i, difference.first, site.kernel, site.file,
                    site.line);
    }
}

std::function<void()> kernel_or_loop(const std::vector<Access>& accesses, const LaunchSite& site,
                                     std::function<void()> kernel, std::function<void()> loop) {
    if (!runs_kernels()) return loop;
    if (!compares_loops()) return kernel;
    return [=] { run_both(accesses, site, kernel, loop); };
}

}  // namespace llmc::host
