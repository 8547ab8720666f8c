// Parses VIRTUAL_GPU_FAULT and answers which fault hits (planned_faults.h).
#include "dev/virtual_gpu/planned_faults.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "dev/virtual_gpu/options.h"

namespace virtual_gpu {
namespace {

enum class Where {
    count,      // N: the N-th occurrence
    product,    // N: the N-th shape; or a part of its description
    algorithm,  // the same, and optionally @N or @all: with which algorithm
    name,       // a part of a name
};
struct Kind {
    const char* name;
    Where where;
};
constexpr Kind kKinds[] = {
    {"memory", Where::count},
    {"kernel", Where::count},
    {"stall", Where::count},
    {"refuse", Where::product},
    {"wrong-product", Where::algorithm},
    {"unsteady-product", Where::algorithm},
    {"cast", Where::name},
    {"wrong-kernel", Where::name},
    {"unsteady-kernel", Where::name},
    {"zero-store", Where::name},
    {"stray", Where::name},
    {"stray-fault", Where::name},
    {"hang-kernel", Where::name},
    {"fail-kernel", Where::name},
    {"corrupt", Where::name},
};
constexpr int kEveryAlgorithm = 0, kFirstAlgorithm = 1;

struct PlannedFault {
    Kind kind{};
    std::string part;  // of a name or a description; empty matches all
    uint64_t number = 0;
    int algorithm = kEveryAlgorithm;
};

// Accepts only digits, and not 0.
bool read_number(const std::string& text, uint64_t& number) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return false;
    number = std::strtoull(text.c_str(), nullptr, 10);
    return number > 0;
}

bool read_where(std::string where, PlannedFault& fault) {
    if (fault.kind.where == Where::algorithm) {
        fault.algorithm = kFirstAlgorithm;
        if (const size_t at = where.rfind('@'); at != std::string::npos) {
            const std::string which = where.substr(at + 1);
            uint64_t number = kEveryAlgorithm;
            if (which != "all" && !read_number(which, number)) return false;
            fault.algorithm = static_cast<int>(number);
            where.resize(at);
            if (where.empty()) return true;
        }
    }
    if (where.empty()) return false;
    const bool digits = where.find_first_not_of("0123456789") == std::string::npos;
    if (fault.kind.where == Where::name || (fault.kind.where != Where::count && !digits)) {
        fault.part = where;
        return true;
    }
    return read_number(where, fault.number);
}

PlannedFault read_fault(const std::string& text) {
    const size_t colon = text.find(':');
    PlannedFault fault;
    std::string kinds;
    for (const Kind& kind : kKinds) {
        kinds += std::string(kinds.empty() ? "" : "|") + kind.name;
        if (text.substr(0, colon) != kind.name) continue;
        fault.kind = kind;
        if (kind.where == Where::algorithm) fault.algorithm = kFirstAlgorithm;
        if (colon == std::string::npos && kind.where == Where::count) fault.number = 1;
        if (colon == std::string::npos || read_where(text.substr(colon + 1), fault)) return fault;
    }
    std::fprintf(
        stderr,
        "virtual GPU: VIRTUAL_GPU_FAULT=%s: expected %s, with :WHERE as dev/virtual_gpu/cuda/README.md has it, and "
        "commas between several\n",
        text.c_str(), kinds.c_str());
    std::_Exit(2);
}

const std::vector<PlannedFault>& planned() {
    static const auto* const all = [] {
        auto* const faults = new std::vector<PlannedFault>;
        const std::string& text = options().fault;
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = std::min(text.find(',', begin), text.size());
            faults->push_back(read_fault(text.substr(begin, end - begin)));
            begin = end + 1;
        }
        return faults;
    }();
    return *all;
}

}  // namespace

long planned_fault(const char* kind) {
    for (const PlannedFault& fault : planned())
        if (fault.kind.name == std::string_view(kind)) return static_cast<long>(fault.number);
    return 0;
}

bool lies(const char* kind, const std::string& name) { return lies(kind, 0, name, kEveryAlgorithm); }

bool lies(const char* kind, uint64_t shape, const std::string& description, int algorithm) {
    return std::any_of(planned().begin(), planned().end(), [&](const PlannedFault& fault) {
        return fault.kind.name == std::string_view(kind) && (fault.number == 0 || fault.number == shape) &&
               (fault.algorithm == kEveryAlgorithm || fault.algorithm == algorithm) &&
               description.find(fault.part) != std::string::npos;
    });
}

uint64_t unsteady_number() {
    static std::atomic<uint64_t> next{
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
    return next++;
}

}  // namespace virtual_gpu
