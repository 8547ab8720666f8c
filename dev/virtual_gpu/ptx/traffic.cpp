// Counts sectors and passes of memory accesses (traffic.h).
#include "dev/virtual_gpu/ptx/traffic.h"

#include <algorithm>
#include <array>

namespace virtual_gpu {

void count_global(const uint64_t (&address)[kLanes], uint32_t mask, uint32_t bytes, OpCounts& counts) {
    constexpr uint64_t kSector = 32;
    std::array<uint64_t, 2 * kLanes> sectors;
    size_t n = 0;
    for (int i = 0; i < kLanes; i++) {
        if (!has(mask, i)) continue;
        for (uint64_t s = address[i] / kSector; s <= (address[i] + bytes - 1) / kSector; s++) sectors[n++] = s;
    }
    std::sort(sectors.begin(), sectors.begin() + static_cast<long>(n));
    counts.requests++;
    counts.sectors +=
        static_cast<uint64_t>(std::unique(sectors.begin(), sectors.begin() + static_cast<long>(n)) - sectors.begin());
    counts.bytes += uint64_t{bytes} * static_cast<uint64_t>(count_lanes(mask));
}

void count_shared(const uint64_t (&address)[kLanes], uint32_t mask, uint32_t bytes, OpCounts& counts) {
    const int together = bytes >= 16  ? 8
                         : bytes == 8 ? 16
                                      : 32;  // lanes whose accesses fit into one pass if no two words collide
    for (int first = 0; first < kLanes; first += together) {
        std::array<std::array<uint64_t, 2 * kLanes>, 32> words;  // by bank
        std::array<size_t, 32> used{};
        size_t worst = 0;
        for (int i = first; i < first + together; i++) {
            if (!has(mask, i)) continue;
            for (uint64_t word = address[i] / 4; word <= (address[i] + bytes - 1) / 4; word++) {
                const size_t bank = word % 32;
                const auto end = words[bank].begin() + static_cast<long>(used[bank]);
                if (std::find(words[bank].begin(), end, word) != end) continue;
                words[bank][used[bank]++] = word;
                worst = std::max(worst, used[bank]);
            }
        }
        if (worst == 0) continue;
        counts.passes += worst;
        counts.conflicts += worst - 1;
    }
}

}  // namespace virtual_gpu
