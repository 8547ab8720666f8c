// Failures of NCCL calls: a code for the program, and a text on stderr and for ncclGetLastError().
#pragma once
#include <nccl.h>

#include <stdexcept>
#include <string>

namespace virtual_gpu::nccl {

struct Error : std::runtime_error {
    Error(ncclResult_t c, const std::string& text) : std::runtime_error(text), code(c) {}
    ncclResult_t code;
};

// Prints one line and keeps it for ncclGetLastError(). Callable from any thread.
void report(const std::string& text);
std::string last_report();

}  // namespace virtual_gpu::nccl
