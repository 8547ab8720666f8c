// The number of blocks of a launch that a multiprocessor of the simulated card holds at a time.
#pragma once
#include <cstdint>

namespace virtual_gpu {

struct Occupancy {
    int blocks = 0;          // per multiprocessor; 0 if a block does not fit
    const char* limit = "";  // the resource that prevents one more: "registers", "shared", "threads", "blocks"
    uint64_t waves(uint64_t grid) const;  // rounds of the whole card; the last may be partial
};

Occupancy occupancy_of(int registers_per_thread, uint32_t threads, uint64_t shared_bytes);

}  // namespace virtual_gpu
