// What kernels do wrong on purpose, in every launch (VIRTUAL_GPU_FAULT): when a launch has ended, something of its last
// store is changed, or one more store is made behind all that it wrote.
#pragma once
#include <cstdint>
#include <memory>

#include "dev/virtual_gpu/ptx/address.h"

namespace virtual_gpu {

// To device memory, atomic operations included.
struct LastStore {
    uint64_t address[kLanes] = {};
    int count = 0;       // of addresses; 0: there was none
    uint32_t bytes = 0;  // at each
    uint64_t end = 0;    // of all that was stored

    void note(const Addresses& at, uint32_t mask, uint32_t size);
    void note(uint64_t at, uint32_t size);
};

class Falsifier {
public:
    static std::unique_ptr<Falsifier> of(const Kernel& kernel);  // null: it is honest

    // A block that has ended. The last store is that of the last block that made one, in whatever order they ran.
    void add(const LastStore& stored, uint64_t block);
    // When all have. Throws Fault for a store outside all memory.
    void falsify() const;

private:
    bool wrong_ = false, unsteady_ = false, stray_ = false, stray_fault_ = false;
    LastStore last_;
    uint64_t block_ = 0, end_ = 0;
};

}  // namespace virtual_gpu
