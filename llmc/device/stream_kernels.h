// What a stream remembers for launchers: a set of bits that says which kernels it runs (see choose_kernels() in
// llmc/kernels/variants.h). A new stream has none of them set. On a GPU nothing is remembered.
#pragma once
#include "llmc/device/runtime.h"

namespace llmc {

void set_stream_kernels(stream_t stream, uint64_t kernels);
uint64_t stream_kernels(stream_t stream);  // 0 of nullptr

}  // namespace llmc
