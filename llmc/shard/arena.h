// One allocation for everything of a kind (weights, gradients, activations, ...): tensors are planned first, then the
// memory is taken once, and nothing is allocated afterwards.
//
//   Arena activations(MemoryKind::activations);
//   activations.plan(&qkv, N * 3 * C);     // remembers the pointer variable
//   activations.bytes();                   // known before anything is allocated
//   activations.allocate();                // fills in the pointers
#pragma once
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
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
        slots_.push_back({reinterpret_cast<void**>(pointer), bytes_});
        bytes_ += aligned(count * sizeof(T));
    }
    // The same memory for every pointer planned under one name, as much as the largest of them wants.
    template <class T>
    void plan_shared(const std::string& name, T** pointer, size_t count) {
        Shared& shared = shared_[name];
        shared.bytes = std::max(shared.bytes, aligned(count * sizeof(T)));
        shared.pointers.push_back(reinterpret_cast<void**>(pointer));
    }
    size_t bytes() const {
        size_t sum = bytes_;
        for (const auto& [name, shared] : shared_) sum += shared.bytes;
        return sum;
    }

    void allocate() {
        memory_ = static_cast<char*>(device_malloc(bytes(), kind_));
        for (const Slot& slot : slots_) *slot.pointer = memory_ + slot.offset;
        char* at = memory_ + bytes_;
        for (const auto& [name, shared] : shared_) {
            for (void** pointer : shared.pointers) *pointer = at;
            at += shared.bytes;
        }
    }

private:
    struct Slot {
        void** pointer;
        size_t offset;
    };
    struct Shared {
        size_t bytes = 0;
        std::vector<void**> pointers;
    };
    static size_t aligned(size_t bytes) {
        const size_t alignment = device_alignment();
        return (bytes + alignment - 1) / alignment * alignment;
    }
    MemoryKind kind_;
    std::vector<Slot> slots_;
    std::map<std::string, Shared> shared_;
    size_t bytes_ = 0;
    char* memory_ = nullptr;
};

}  // namespace llmc
