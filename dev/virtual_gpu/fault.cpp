// Formats and throws faults.
#include "dev/virtual_gpu/fault.h"

#include <cstdarg>
#include <cstdio>

namespace virtual_gpu {
namespace {

std::string formatted(const char* text, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    const int length = std::vsnprintf(nullptr, 0, text, arguments);
    std::string result(static_cast<size_t>(length), '\0');
    std::vsnprintf(result.data(), result.size() + 1, text, again);
    va_end(again);
    return result;
}

}  // namespace

std::string format(const char* text, ...) {
    va_list arguments;
    va_start(arguments, text);
    std::string result = formatted(text, arguments);
    va_end(arguments);
    return result;
}

void fault(const char* text, ...) {
    va_list arguments;
    va_start(arguments, text);
    const std::string message = formatted(text, arguments);
    va_end(arguments);
    throw Fault(message);
}

}  // namespace virtual_gpu
