// Checksums of device memory, to tell whether two results have the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/runtime.h"

namespace llmc {

// *sum += the sum over all 8-byte words of mix(word, its place), modulo 2^64. The last word is filled up with zeros.
// mix is a bijection of the word for every place (the finalizer of SplitMix64, by D. Stafford): whatever changes within
// one word, the sum changes; other differences go unseen once in 2^64. Integers, so no order of adding shows:
// deterministic. `data` must be 8-byte aligned; any number of bytes, each read once.
void checksum(uint64_t* sum, const void* data, size_t bytes, stream_t stream);

}  // namespace llmc
