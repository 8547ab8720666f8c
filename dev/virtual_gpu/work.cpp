// Counts of products, copies, fills and collectives (work.h).
#include "dev/virtual_gpu/work.h"

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/options.h"

namespace virtual_gpu {
namespace {

std::mutex mutex;
std::map<std::string, uint64_t>& all() {
    static auto* const counts = new std::map<std::string, uint64_t>;  // outlives all static destructors
    return *counts;
}

}  // namespace

bool counting() {
    static const bool wanted = !options().counts.empty();
    return wanted;
}

void count_work(const nlohmann::json& work) {
    const std::lock_guard lock(mutex);
    all()[work.dump()]++;
}

void write_work(std::FILE* file) {
    const std::lock_guard lock(mutex);
    for (const auto& [work, times] : all()) {
        nlohmann::json line = nlohmann::json::parse(work);
        line["launches"] = times;
        std::fprintf(file, "%s\n", line.dump().c_str());
    }
    const auto write = [&](const char* of, const Memory::Use& use) {
        const nlohmann::json line{{"memory", of}, {"most", use.most}, {"left", use.now}};
        std::fprintf(file, "%s\n", line.dump().c_str());
    };
    write("device", Memory::get().device_use());
    write("pinned", Memory::get().pinned_use());
}

}  // namespace virtual_gpu
