// Failures that a GPU would also report, but with messages that a GPU does not give.
#pragma once
#include <stdexcept>
#include <string>

namespace virtual_gpu {

// A rule that a program broke. `what` names the kernel, its PTX line and the thread, or the call.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[gnu::format(printf, 1, 2)]] std::string format(const char* text, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* text, ...);

}  // namespace virtual_gpu
