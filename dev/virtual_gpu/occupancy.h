// How many blocks of a launch a multiprocessor of the card being played holds at a time.
#pragma once
#include <cstdint>

namespace virtual_gpu {

struct Occupancy {
    int blocks = 0;                       // a multiprocessor; 0: a block does not fit
    const char* limit = "";               // what keeps it from one more: "registers", "shared", "threads", "blocks"
    uint64_t waves(uint64_t grid) const;  // rounds of the whole card, the last of which may be part of one
};

Occupancy occupancy_of(int registers_per_thread, uint32_t threads, uint64_t shared_bytes);

}  // namespace virtual_gpu
