// The process's account of device memory: every live allocation, its kind, and the peak use per kind. It has no lock,
// because only the main thread allocates and copies. The threads of the loader and of a save work on host memory, and
// the watchdog's thread only queries events.
#pragma once
#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "llmc/device/runtime.h"

namespace llmc {

class MemoryLedger {
public:
    static MemoryLedger& instance() {
        static MemoryLedger ledger;
        return ledger;
    }
    void add(const void* owner, size_t bytes, MemoryKind kind) {
        live_[owner] = {bytes, kind};
        MemoryUse& use = use_[static_cast<size_t>(kind)];
        use.bytes += bytes;
        use.peak = std::max(use.peak, use.bytes);
        if (kind != MemoryKind::offloaded) bytes_ += bytes;
    }
    void remove(const void* owner) {
        const auto entry = live_.find(owner);
        if (entry == live_.end()) return;
        use_[static_cast<size_t>(entry->second.kind)].bytes -= entry->second.bytes;
        if (entry->second.kind != MemoryKind::offloaded) bytes_ -= entry->second.bytes;
        live_.erase(entry);
    }
    size_t bytes() const { return bytes_; }  // of device memory
    bool is_offloaded(const void* p) const {
        if (use(MemoryKind::offloaded).bytes == 0) return false;
        const char* const at = static_cast<const char*>(p);
        for (const auto& [owner, entry] : live_)
            if (entry.kind == MemoryKind::offloaded && at >= owner &&
                at < static_cast<const char*>(owner) + entry.bytes)
                return true;
        return false;
    }
    void forget_peaks() {
        for (MemoryUse& use : use_) use.peak = use.bytes;
    }
    MemoryUse use(MemoryKind kind) const { return use_[static_cast<size_t>(kind)]; }

private:
    struct Entry {
        size_t bytes;
        MemoryKind kind;
    };
    std::unordered_map<const void*, Entry> live_;
    MemoryUse use_[kMemoryKinds];
    size_t bytes_ = 0;
};

}  // namespace llmc
