// Device faults: the messages about them, and how to release resources after one.
//
// A kernel that accesses memory illegally leaves a GPU unusable, and it does so asynchronously: a later call reports
// the error, and so does every call after that. With LLMC_SYNC=1 the host waits after each launch, so the message names
// the work that failed. This is slow.
#pragma once
#include <exception>
#include <string>
#include <utility>

#include "llmc/base/error.h"

namespace llmc {

// The place in the source that gave work to the device, for messages.
struct LaunchSite {
    const char* kernel = "";
    const char* file = "";
    int line = 0;
};

// True if LLMC_SYNC=1. The environment is read once; tests change the value.
bool& waits_after_work();

// The error when `call` reports `problem`, the fault of some earlier work.
Error late_fault(const std::string& call, const std::string& problem);
// The error when the work from `site` is known to have caused `problem`.
Error named_fault(const LaunchSite& site, const std::string& problem);

// Reports a failure during teardown on stderr, once, and only if no other error is already on its way to main().
void note_teardown_failure(const std::exception& failure) noexcept;

// Runs one release of a resource in a destructor. After a fault all such calls fail, and an exception would end the
// process before the first error's message is printed.
template <class Action>
void tear_down(Action&& action) noexcept {
    try {
        action();
    } catch (const std::exception& failure) {
        note_teardown_failure(failure);
    }
}

// Runs such a release at the end of its scope.
template <class Action>
class AtScopeEnd {
public:
    explicit AtScopeEnd(Action action) : action_(std::move(action)) {}
    ~AtScopeEnd() { tear_down(action_); }
    AtScopeEnd(AtScopeEnd&&) = delete;

private:
    Action action_;
};

}  // namespace llmc
