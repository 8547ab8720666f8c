// Reads the virtual GPU's options from the environment.
#include "dev/virtual_gpu/options.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dev/virtual_gpu/card.h"

extern char** environ;

namespace virtual_gpu {
namespace {

constexpr const char* kPrefix = "VIRTUAL_GPU_";

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& expected) {
    std::fprintf(stderr, "virtual GPU: %s=%s: expected %s\n", name.c_str(), value.c_str(), expected.c_str());
    std::_Exit(2);
}

// The index of `value` among `words`, which are separated by bars.
template <class Enum>
Enum choice(const std::string& name, const std::string& value, const std::string& words) {
    size_t begin = 0;
    for (int index = 0; begin <= words.size(); index++) {
        const size_t end = std::min(words.find('|', begin), words.size());
        if (words.compare(begin, end - begin, value) == 0) return static_cast<Enum>(index);
        begin = end + 1;
    }
    refuse(name, value, words);
}

long number(const std::string& name, const std::string& value, long low, long high) {
    char* end = nullptr;
    const long n = std::strtol(value.c_str(), &end, 10);
    if (value.empty() || *end || n < low || n > high)
        refuse(name, value, std::to_string(low) + " to " + std::to_string(high));
    return n;
}

Options from_environment() {
    Options o;
    for (char** entry = environ; *entry; entry++) {
        if (std::strncmp(*entry, kPrefix, std::strlen(kPrefix)) != 0) continue;
        const std::string text = *entry;
        const size_t equals = text.find('=');
        const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
        const std::string key = name.substr(std::strlen(kPrefix));
        if (key == "CARD") {
            o.card = value;
            if (!find_card(value)) refuse(name, value, "sm_80|sm_89|sm_90a|sm_100|sm_120");
        } else if (key == "MULTIPROCESSORS") {
            o.multiprocessors = static_cast<int>(number(name, value, 1, 1024));
        } else if (key == "DEVICES") {
            o.devices = static_cast<int>(number(name, value, 0, 64));
        } else if (key == "STREAMS") {
            o.streams = choice<Streams>(name, value, "now|lazy|random");
        } else if (key == "ORDER") {
            o.order = choice<Order>(name, value, "ascending|descending|random");
        } else if (key == "SEED") {
            o.seed = static_cast<uint64_t>(number(name, value, 0, 1'000'000'000));
        } else if (key == "ARITHMETIC") {
            o.arithmetic = choice<Arithmetic>(name, value, "fp32|ampere|ada|hopper|blackwell");
        } else if (key == "APPROXIMATE") {
            o.approximate = number(name, value, 0, 1) == 1;
        } else if (key == "RACES") {
            o.races = number(name, value, 0, 1) == 1;
        } else if (key == "THREADS") {
            o.threads = static_cast<int>(number(name, value, 0, 1024));
        } else if (key == "COUNTS") {
            o.counts = value;
        } else if (key == "UUID") {
            o.uuid = value;
        } else if (key == "DRIVER") {
            o.driver_version = static_cast<int>(number(name, value, 12000, 99990));
        } else if (key == "HEURISTIC") {
            o.heuristic = value == "reversed" ? kReversed : static_cast<int>(number(name, value, 0, 100));
        } else if (key == "CUBLAS") {
            o.cublas_version = static_cast<int>(number(name, value, 110000, 999999));
        } else if (key == "NCCL") {
            o.nccl_version = static_cast<int>(number(name, value, 20000, 99999));
        } else if (key == "LOSE") {
            o.lose = value;
        } else if (key == "FAULT") {
            o.fault = value;
        } else {
            refuse(name, value, "no such variable (dev/virtual_gpu/README.md has all)");
        }
    }
    return o;
}

}  // namespace

const Options& options() {
    static const Options* const o = new Options(from_environment());
    return *o;
}

}  // namespace virtual_gpu
