// Each stream stores a set of bits that tells launchers which kernel variants to use (choose_kernels() in
// llmc/kernels/variants.h). A new stream has no bits set.
#pragma once
#include "llmc/device/runtime.h"

namespace llmc {

void set_stream_kernels(stream_t stream, uint64_t kernels);
uint64_t stream_kernels(stream_t stream);  // 0 for nullptr

}  // namespace llmc
