// The footprint of a launch in device memory: how many sectors of 32 bytes it reads and how many it writes, each
// counted once however often it is touched. What a launch must move between DRAM and L2 at least, if nothing of it lay
// in L2 before. Whoever touches a sector first in a launch stamps it, so that the numbers depend neither on the order
// in which blocks run nor on how many threads run them.
#pragma once
#include <cstdint>

#include "dev/virtual_gpu/ptx/address.h"

namespace virtual_gpu {

class Footprint {
public:
    Footprint();
    void start_launch() { launch_++; }

    // Count the active lanes' accesses of `bytes` bytes where they are the launch's first of a sector.
    void read(const Addresses& at, uint32_t mask, uint32_t bytes, Sectors& counted) const;
    void write(const Addresses& at, uint32_t mask, uint32_t bytes, Sectors& counted) const;

private:
    uint64_t stamp(uint32_t* stamps, const Addresses& at, uint32_t mask, uint32_t bytes) const;

    uint32_t launch_ = 0;
    uint32_t *read_ = nullptr, *written_ = nullptr;  // of every sector of device memory: the last launch that did
};

}  // namespace virtual_gpu
