// Reads the host device's settings from the environment, and keeps every kernel's limits of shared memory.
#include "llmc/device/host/settings.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "llmc/base/error.h"
#include "llmc/device/gpu_rules.h"

namespace llmc::host {
namespace {

// The index of the environment variable's value among `choices`. The first is the default.
int choice(const char* name, std::initializer_list<const char*> choices) {
    const char* value = std::getenv(name);
    if (!value) return 0;
    int i = 0;
    std::string known;
    for (const char* c : choices) {
        if (!std::strcmp(value, c)) return i;
        known += std::string(i ? ", " : "") + c;
        i++;
    }
    throw Error(ExitCode::bad_flags, "{}={}: expected one of {}", name, value, known);
}

}  // namespace

long number_from_environment(const char* name, long least, long most) {
    const char* value = std::getenv(name);
    char* end = nullptr;
    const long number = std::strtol(value, &end, 10);
    if (end == value || *end != '\0' || number < least || number > most)
        throw Error(ExitCode::bad_flags, "{}={} in the environment: expected a whole number from {} to {}", name, value,
                    least, most);
    return number;
}

Settings::Settings() : stack_bytes((LLMC_ASAN ? 256 : 64) << 10) {
    order = static_cast<Order>(choice("LLMC_ORDER", {"ascending", "descending", "random"}));
    poison = choice("LLMC_POISON", {"1", "0"}) == 0;
    const int streams = choice("LLMC_STREAMS", {"now", "lazy", "random"});
    lazy_streams = streams > 0;
    random_streams = streams == 2;
    guard = choice("LLMC_GUARD", {"0", "1"}) == 1;
    constexpr size_t kSharedKilobytes[] = {227, 163, 99};  // sm_90 and sm_100; sm_80; sm_89 and sm_120
    shared_limit = kSharedKilobytes[choice("LLMC_SHARED_KB", {"227", "163", "99"})] << 10;
    if (std::getenv("LLMC_MEMORY_MB"))
        memory = static_cast<size_t>(number_from_environment("LLMC_MEMORY_MB", 1, 1 << 30)) << 20;
    if (const char* s = std::getenv("LLMC_FAULT")) fault = std::strtoull(s, nullptr, 10);
    if (const char* s = std::getenv("LLMC_FLIP")) flip = s;
    if (const char* s = std::getenv("LLMC_DELAY")) delay = s;
    if (const char* s = std::getenv("LLMC_SEED")) seed = static_cast<uint32_t>(std::strtoul(s, nullptr, 10));
    if (std::getenv("LLMC_STACK_KB"))
        stack_bytes = static_cast<size_t>(number_from_environment("LLMC_STACK_KB", 32, 1 << 20)) << 10;
}

Settings& settings() {
    static Settings instance;
    return instance;
}

// ---- shared memory --------------------------------------------------------------------------------------------------

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
    const SharedMemory kernel{static_bytes_, granted_now(), settings().shared_limit};
    if (kernel.fits(dynamic_bytes) && kernel.must_ask(dynamic_bytes)) asked_ = dynamic_bytes;
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
