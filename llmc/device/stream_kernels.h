// On the host device a stream remembers for launchers, as a set of bits, which kernels it runs (see choose_kernels() in
// llmc/kernels/variants.h). A new stream has none of them set. On a GPU these functions do nothing.
#pragma once
#include "llmc/device/runtime.h"

namespace llmc {

void set_stream_kernels(stream_t stream, uint64_t kernels);
uint64_t stream_kernels(stream_t stream);  // 0 of nullptr

}  // namespace llmc
