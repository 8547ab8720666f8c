// Checksums of device memory, to tell whether two results have the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/runtime.h"

namespace llmc {

// *sum += sum over all 8-byte words of mix(word, place of the word), modulo 2^64. The last word is filled up with
// zeros. For every place, mix is a bijection of the word (the finalizer of SplitMix64, by D. Stafford). So any change
// within one word changes the sum; other differences go unseen once in 2^64. Deterministic, because sums of integers do
// not depend on their order. `data` is 8-byte aligned. Any number of bytes; each is read once.
void checksum(uint64_t* sum, const void* data, size_t bytes, stream_t stream);

}  // namespace llmc
