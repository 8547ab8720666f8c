// Messages for device faults, and the LLMC_SYNC switch.
#include "llmc/device/device_errors.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace llmc {

bool& waits_after_work() {
    static bool instance = [] {
        const char* value = std::getenv("LLMC_SYNC");
        if (!value || !std::strcmp(value, "0")) return false;
        if (std::strcmp(value, "1")) refuse("LLMC_SYNC={}: expected one of 0, 1", value);
        return true;
    }();
    return instance;
}

Error late_fault(const std::string& call, const std::string& problem) {
    const char* origin = waits_after_work() ? "work that LLMC_SYNC=1 does not wait for, a copy or a collective"
                                            : "some earlier launch; LLMC_SYNC=1 names it";
    return Error(ExitCode::failure, "found at {}: {}; it happened in {}", call, problem, origin);
}

Error named_fault(const LaunchSite& site, const std::string& problem) {
    const std::string place = site.line ? fmt::format(" [launched at {}:{}]", site.file, site.line) : "";
    return Error(ExitCode::failure, "{} failed: {}{}", site.kernel, problem, place);
}

void note_teardown_failure(const std::exception& failure) noexcept {
    static std::atomic<bool> said = false;
    if (std::uncaught_exceptions() > 0 || said.exchange(true)) return;
    std::fprintf(stderr, "train_gpt: while the run was taken down: %s\n", failure.what());
}

}  // namespace llmc
