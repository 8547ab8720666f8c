// Which GPUs a build has code for, and what to tell the owner of another one.
//
// A build is for a list of architectures, "sm_80 sm_90a compute_120" for example (ARCHS in the Makefile). Code runs on
// its own generation from its own compute capability on: that of sm_80 on 8.0 to 8.9. With a letter it runs on one
// compute capability alone: that of sm_90a on 9.0. PTX without a letter (compute_120) becomes code for any GPU from its
// capability on.
#pragma once
#include <string>

namespace llmc {

// Capabilities are written as the architectures are: 89 for 8.9, 120 for 12.0.
bool has_code_for(const std::string& architectures, int capability);

// The GPU_ARCH to build with for this compute capability, or "" where there is none.
std::string gpu_arch_for(int capability);

// For a GPU that has_code_for() is false of.
std::string no_code_message(const std::string& architectures, const std::string& gpu, int capability);

}  // namespace llmc
