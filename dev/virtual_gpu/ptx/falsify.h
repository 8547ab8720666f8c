// Deliberate errors of kernels, in every launch (VIRTUAL_GPU_FAULT): after a launch, a part of its last store is
// changed, or a further store is made after everything that it wrote.
#pragma once
#include <cstdint>
#include <memory>

#include "dev/virtual_gpu/ptx/address.h"

namespace virtual_gpu {

// A kernel's last store to device memory, atomic operations on results included.
struct LastStore {
    uint64_t address[kLanes] = {};
    int count = 0;       // the number of addresses; 0 if there was no store
    uint32_t bytes = 0;  // at each address
    uint64_t end = 0;    // of everything that was stored

    void note(const Addresses& at, uint32_t mask, uint32_t size);
    void note(uint64_t at, uint32_t size);
};

class Falsifier {
public:
    static std::unique_ptr<Falsifier> of(const Kernel& kernel);  // nullptr if the kernel is to be correct

    // Adds a block that has ended. The result is the last store of the highest-numbered block that made one, in
    // whatever order the blocks ran.
    void add(const LastStore& stored, uint64_t block);
    // Called when all blocks have ended. Throws Fault for a store outside all memory.
    void falsify() const;

private:
    bool wrong_ = false, unsteady_ = false, zero_ = false, stray_ = false, stray_fault_ = false;
    LastStore last_;
    uint64_t block_ = 0, end_ = 0;
};

}  // namespace virtual_gpu
