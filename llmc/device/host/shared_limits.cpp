// Static and granted shared memory per kernel, as the host device learns them.
#include "llmc/device/host/shared_limits.h"

#include <algorithm>
#include <map>

#include "llmc/device/host/settings.h"
#include "llmc/device/shared_memory.h"

namespace llmc::host {

namespace {
std::mutex kernels_mutex;
std::map<const void*, SharedLimits>& kernels() {
    static std::map<const void*, SharedLimits> instance;
    return instance;
}
}  // namespace

SharedLimits& SharedLimits::of(const void* kernel) {
    const std::lock_guard lock(kernels_mutex);
    return kernels()[kernel];
}

void SharedLimits::forget_all() {
    const std::lock_guard all(kernels_mutex);
    for (auto& [kernel, limits] : kernels()) {
        const std::lock_guard lock(limits.mutex_);
        limits.static_bytes_ = limits.asked_ = 0;
        limits.asks_ = false;
    }
}

size_t SharedLimits::granted_now() const {
    if (asked_ > 0) return asked_;
    return kSharedWithoutAsking - std::min(kSharedWithoutAsking, static_bytes_);
}

void SharedLimits::ask(size_t dynamic_bytes) {
    SharedMemory kernel{static_bytes_, granted_now(), settings().shared_limit};
    if (kernel.fits(dynamic_bytes)) kernel.provide(dynamic_bytes, [this](size_t bytes) { asked_ = bytes; });
}

void SharedLimits::ask_for(size_t dynamic_bytes) {
    const std::lock_guard lock(mutex_);
    asks_ = true;
    ask(dynamic_bytes);
}

bool SharedLimits::admits(size_t static_bytes, size_t dynamic_bytes) {
    const std::lock_guard lock(mutex_);
    static_bytes_ = std::max(static_bytes_, static_bytes);
    if (asks_) ask(dynamic_bytes);
    return dynamic_bytes <= granted_now() && static_bytes + dynamic_bytes <= settings().shared_limit;
}

size_t SharedLimits::static_bytes() {
    const std::lock_guard lock(mutex_);
    return static_bytes_;
}

}  // namespace llmc::host
