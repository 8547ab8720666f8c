// Faults of the device: how they are named, and how what is left is taken down after one.
//
// A kernel that touches memory it must not leaves a GPU unusable, and it does so asynchronously: some later call comes
// upon the error, and every call after that returns it again. With LLMC_SYNC=1 the host waits after every piece of
// work, so that the message names the one that failed. Slow.
#pragma once
#include <exception>
#include <string>

#include "llmc/base/error.h"

namespace llmc {

// Where work was given to the device, for messages.
struct LaunchSite {
    const char* kernel = "";
    const char* file = "";
    int line = 0;
};

// LLMC_SYNC, read once; tests change it.
bool& waits_after_work();

// `problem` is the fault of some earlier work, which `call` came upon.
Error late_fault(const std::string& call, const std::string& problem);
// `problem` is the fault of the work from `site`.
Error named_fault(const LaunchSite& site, const std::string& problem);

// What failed while something was taken down: said on stderr, once, unless an error is on its way to main() already.
void note_teardown_failure(const std::exception& failure) noexcept;

// For destructors, each call of the runtime on its own: after a fault all of them fail, and an exception would end the
// process before the first error's message is out.
template <class Action>
void tear_down(Action&& action) noexcept {
    try {
        action();
    } catch (const std::exception& failure) {
        note_teardown_failure(failure);
    }
}

}  // namespace llmc
