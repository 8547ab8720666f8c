// The footprint of a launch in device memory: the number of sectors of 32 bytes that it reads and that it writes, each
// counted once. This is the least that a launch moves between DRAM and L2 if nothing was in L2 before. The first access
// to a sector in a launch stamps it, so the numbers depend neither on the order of blocks nor on the number of threads.
#pragma once
#include <cstdint>

#include "dev/virtual_gpu/ptx/address.h"

namespace virtual_gpu {

class Footprint {
public:
    Footprint();
    void start_launch() { launch_++; }

    // Count the active lanes' accesses of `bytes` bytes that are the launch's first access to a sector.
    void read(const Addresses& at, uint32_t mask, uint32_t bytes, Sectors& counted) const;
    void write(const Addresses& at, uint32_t mask, uint32_t bytes, Sectors& counted) const;

private:
    uint64_t stamp(uint32_t* stamps, const Addresses& at, uint32_t mask, uint32_t bytes) const;

    uint32_t launch_ = 0;
    uint32_t *read_ = nullptr, *written_ = nullptr;  // for every sector of device memory, the last launch that did
};

}  // namespace virtual_gpu
