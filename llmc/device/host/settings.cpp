// Reads the host device's settings from the environment.
#include "llmc/device/host/settings.h"

#include <climits>
#include <cstdlib>
#include <cstring>

#include "llmc/base/error.h"

namespace llmc::host {

int choice_from_environment(const char* name, std::initializer_list<const char*> choices) {
    const char* value = std::getenv(name);
    if (!value) return 0;
    int i = 0;
    std::string known;
    for (const char* c : choices) {
        if (!std::strcmp(value, c)) return i;
        known += std::string(known.empty() ? "" : ", ") + c;
        i++;
    }
    refuse("{}={}: expected one of {}", name, value, known);
}

static NumberedWork numbered_work(const char* name) {
    const char* value = std::getenv(name);
    if (!value || !*value) return {};
    const std::string text = value;
    const size_t colon = text.rfind(':');
    char* end = nullptr;
    const long number = colon == std::string::npos ? 0 : std::strtol(value + colon + 1, &end, 10);
    if (number < 1 || *end != '\0') refuse("{}={}: expected WORK:N, as in update_kernel:3", name, text);
    return {text.substr(0, colon), static_cast<uint64_t>(number)};
}

long number_from_environment(const char* name, long least, long most) {
    const char* value = std::getenv(name);
    char* end = nullptr;
    const long number = std::strtol(value, &end, 10);
    if (end == value || *end != '\0' || number < least || number > most)
        refuse("{}={} in the environment: expected a whole number from {} to {}", name, value, least, most);
    return number;
}

Settings::Settings() {
    poison = choice_from_environment("LLMC_POISON", {"1", "0"}) == 0;
    const int streams = choice_from_environment("LLMC_STREAMS", {"now", "lazy", "random"});
    lazy_streams = streams > 0;
    random_streams = streams == 2;
    guard = choice_from_environment("LLMC_GUARD", {"0", "1"}) == 1;
    constexpr size_t kSharedKilobytes[] = {227, 163, 99};  // sm_90 and sm_100; sm_80; sm_89 and sm_120
    shared_limit = kSharedKilobytes[choice_from_environment("LLMC_SHARED_KB", {"227", "163", "99"})] << 10;
    if (std::getenv("LLMC_MEMORY_MB"))
        memory = static_cast<size_t>(number_from_environment("LLMC_MEMORY_MB", 1, 1 << 30)) << 20;
    if (std::getenv("LLMC_FAULT")) fault = static_cast<uint64_t>(number_from_environment("LLMC_FAULT", 0, LONG_MAX));
    flip = numbered_work("LLMC_FLIP");
    delay = numbered_work("LLMC_DELAY");
    if (std::getenv("LLMC_SEED")) seed = static_cast<uint32_t>(number_from_environment("LLMC_SEED", 0, UINT_MAX));
}

Settings& settings() {
    static Settings instance;
    return instance;
}

}  // namespace llmc::host
