// Memory of the device: an arena is one allocation for everything of a kind (weights, gradients, activations, ...).
// Tensors are planned first, then the memory is taken once, and nothing is allocated afterwards.
//
//   Arena activations(MemoryKind::activations);
//   activations.plan(&qkv, N * 3 * C);     // remembers the address of the pointer
//   activations.bytes();                   // known before anything is allocated
//   activations.allocate();                // sets the pointers
//
// An arena can be the guest of another one, its host: it then uses the host's memory, at times at which the host's
// contents are not needed. The host is as large as the largest of them.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "llmc/device/math.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// A piece of device memory with the name that messages give it.
struct NamedMemory {
    std::string name;  // "h.3.fc.weight"
    const void* address;
    size_t bytes;  // 0 if none of it is on this rank
};

// How much memory a rank needs, in bytes, by the kind of its arenas.
struct MemoryByKind {
    size_t weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;
    // Pinned host memory: the copy of the state from which a checkpoint is written, and what --offload moves there.
    size_t staging = 0, offloaded = 0;
    // Device memory.
    size_t total() const { return weights + gradients + optimizer + activations + workspace; }
    MemoryByKind& operator+=(const MemoryByKind& other) {
        for (const auto bytes :
             {&MemoryByKind::weights, &MemoryByKind::gradients, &MemoryByKind::optimizer, &MemoryByKind::activations,
              &MemoryByKind::workspace, &MemoryByKind::staging, &MemoryByKind::offloaded})
            this->*bytes += other.*bytes;
        return *this;
    }
    size_t operator[](MemoryKind kind) const {
        return std::array{weights, gradients, optimizer, activations, workspace, offloaded}[static_cast<size_t>(kind)];
    }
};

class Arena {
public:
    explicit Arena(MemoryKind kind, Arena* host = nullptr) : kind_(kind), host_(host) {
        if (host_) host_->guests_.push_back(this);
    }
    ~Arena() {
        if (!host_) tear_down([this] { device_free(memory_); });
    }
    Arena(Arena&&) = delete;

    template <class T>
    void plan(T** pointer, size_t count) {
        slots_.push_back({reinterpret_cast<void**>(pointer), bytes_});
        bytes_ += aligned(count * sizeof(T));
    }
    // `count` values of the array's format, with their scales.
    void plan(StateArray* array, size_t count) {
        plan(reinterpret_cast<char**>(&array->values), count * bytes_of(array->format));
        if (array->format == StateFormat::fp8) plan(&array->scales, div_up(count, kStateGroup));
    }
    // All pointers planned under one name share memory, as large as the largest of them needs.
    template <class T>
    void plan_shared(const std::string& name, T** pointer, size_t count) {
        Shared& shared = shared_[name];
        shared.bytes = std::max(shared.bytes, aligned(count * sizeof(T)));
        shared.pointers.push_back(reinterpret_cast<void**>(pointer));
    }
    size_t bytes() const {
        size_t sum = bytes_;
        for (const auto& [name, shared] : shared_) sum += shared.bytes;
        for (const Arena* guest : guests_) sum = std::max(sum, guest->bytes());
        return sum;
    }

    void allocate() {  // a guest after its host
        if (bytes() == 0) return;
        memory_ = host_ ? host_->memory_ : static_cast<char*>(device_malloc(bytes(), kind_));
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
    static size_t aligned(size_t bytes) { return round_up(bytes, device_alignment()); }
    MemoryKind kind_;
    Arena* host_;
    std::vector<Arena*> guests_;
    std::vector<Slot> slots_;
    std::map<std::string, Shared> shared_;
    size_t bytes_ = 0;
    char* memory_ = nullptr;
};

}  // namespace llmc
