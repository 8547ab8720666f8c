// A kernel's text before it is decoded.
#pragma once
#include <cstdint>
#include <string_view>

#include "dev/virtual_gpu/ptx/text.h"

namespace virtual_gpu {

struct Source {
    std::string_view text;      // of the module
    std::string_view body;      // between the kernel's braces
    uint32_t line = 1;          // where the body begins in the module
    Symbols symbols;            // parameters, and the module's shared variables
    uint64_t shared_begin = 0;  // where the kernel's own shared variables may begin
};

}  // namespace virtual_gpu
