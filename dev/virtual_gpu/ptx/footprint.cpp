// Counts the sectors that a launch touches, with a stamp per sector (footprint.h).
#include "dev/virtual_gpu/ptx/footprint.h"

#include <sys/mman.h>

#include <atomic>

namespace virtual_gpu {
namespace {

constexpr uint64_t kSector = 32;

uint32_t* reserve_stamps() {
    return static_cast<uint32_t*>(reserve(kDeviceSpace / kSector * sizeof(uint32_t), PROT_READ | PROT_WRITE));
}

}  // namespace

Footprint::Footprint() : read_(reserve_stamps()), written_(reserve_stamps()) {}

void Footprint::read(const Addresses& at, uint32_t mask, uint32_t bytes, Sectors& counted) const {
    counted.read += stamp(read_, at, mask, bytes);
}
void Footprint::write(const Addresses& at, uint32_t mask, uint32_t bytes, Sectors& counted) const {
    counted.written += stamp(written_, at, mask, bytes);
}

// An access is aligned to its size, so it lies in one sector unless it is larger than a sector. Blocks run
// concurrently: of those that stamp a sector, exactly one sees the older stamp.
uint64_t Footprint::stamp(uint32_t* stamps, const Addresses& at, uint32_t mask, uint32_t bytes) const {
    const Memory& memory = Memory::get();
    uint64_t first = 0, last = ~uint64_t{0};
    for (uint32_t left = mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        if (!memory.is_shadow(at.written[lane])) continue;  // pinned memory belongs to the host
        const uint64_t begin = memory.device_offset(at.written[lane]), end = (begin + bytes - 1) / kSector;
        for (uint64_t sector = begin / kSector; sector <= end; sector++) {
            if (sector == last) continue;
            last = sector;
            const std::atomic_ref<uint32_t> stamp(stamps[sector]);
            if (stamp.load(std::memory_order_relaxed) == launch_) continue;
            first += stamp.exchange(launch_, std::memory_order_relaxed) != launch_;
        }
    }
    return first;
}

}  // namespace virtual_gpu
