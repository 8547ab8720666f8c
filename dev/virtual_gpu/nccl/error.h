// How calls of NCCL fail: with a code for the program, and with words on stderr and for ncclGetLastError().
#pragma once
#include <nccl.h>

#include <stdexcept>
#include <string>

namespace virtual_gpu::nccl {

struct Error : std::runtime_error {
    Error(ncclResult_t c, const std::string& text) : std::runtime_error(text), code(c) {}
    ncclResult_t code;
};

// Prints one line and keeps it for ncclGetLastError(). Any thread.
void report(const std::string& text);
std::string last_report();

}  // namespace virtual_gpu::nccl
