// One allocation for everything of a kind (weights, gradients, activations, ...): tensors are planned first, then the
// memory is taken once, and nothing is allocated afterwards.
//
//   Arena activations(MemoryKind::activations);
//   activations.plan(&qkv, N * 3 * C);     // remembers the pointer variable
//   activations.bytes();                   // known before anything is allocated
//   activations.allocate();                // fills in the pointers
#pragma once
#include <cstddef>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

class Arena {
public:
    explicit Arena(MemoryKind kind) : kind_(kind) {}
    ~Arena() {
        tear_down([this] { device_free(memory_); });
    }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    template <class T>
    void plan(T** pointer, size_t count) {
        const size_t alignment = device_alignment();
        slots_.push_back({reinterpret_cast<void**>(pointer), bytes_});
        bytes_ += (count * sizeof(T) + alignment - 1) / alignment * alignment;
    }
    size_t bytes() const { return bytes_; }

    void allocate() {
        memory_ = static_cast<char*>(device_malloc(bytes_, kind_));
        for (const Slot& slot : slots_) *slot.pointer = memory_ + slot.offset;
    }

private:
    struct Slot {
        void** pointer;
        size_t offset;
    };
    MemoryKind kind_;
    std::vector<Slot> slots_;
    size_t bytes_ = 0;
    char* memory_ = nullptr;
};

}  // namespace llmc
