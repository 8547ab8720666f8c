// Kernels that convert and add arrays, and checksums of device memory. A thread takes eight elements in 16-byte
// accesses, so these kernels run at the speed of memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// Pointers of cast() and add() are 16-byte aligned. Any n, including 0.

// out[i] = inp[i], rounded to nearest even. (To, From) = (bf16, float) or (float, bf16). Moves 6 bytes per element.
template <class To, class From>
void cast(To* out, const From* inp, size_t n, stream_t stream);

// out[i] = a[i] + b[i]. `out` may be a or b. Moves 12 bytes per element.
void add(float* out, const float* a, const float* b, size_t n, stream_t stream);

// out[i] = a[i] - out[i], with `a` in FP32 or BF16. Moves 8 bytes per element, plus 4 or 2 of `a`.
void subtract_from(float* out, const StateArray& a, size_t n, stream_t stream);

// average[i] += share * (values[i] - average[i]), with `values` in FP32 or BF16; a share of 1 copies them. Moves 8
// bytes per element and those of `values`.
void add_to_average(float* average, const StateArray& values, float share, size_t n, stream_t stream);

// Adds `pieces` (added, n) one after the other to gradients, or to 0 if `first`. Every sum is computed in FP32 and
// rounded to BF16 at random, with gradient_bits(rounding.key, batch + piece, place). Moves 4 * added + 4 bytes per
// element, 2 less if `first`. 16-byte aligned; n is a multiple of 8, or `added` is 1.
void add_gradients(bf16* gradients, const float* pieces, int added, size_t n, bool first, const StateRounding& rounding,
                   int64_t batch, stream_t stream);

// Adds a checksum, which tells whether two results have the same bits: *sum += sum over all 8-byte words of mix(word,
// place of the word), modulo 2^64. The last word is filled up with zeros. For every place, mix is a bijection of the
// word (the finalizer of SplitMix64, by D. Stafford). So any change within one word changes the sum; other differences
// go unseen once in 2^64. Deterministic, because sums of integers do not depend on their order. `data` is 8-byte
// aligned. Any number of bytes; each is read once.
void checksum(uint64_t* sum, const void* data, size_t bytes, stream_t stream);

// Adds a checksum of values that does not depend on their format, FP32 or BF16, and can be taken in parts: *sum += sum
// over i < n of mix(key + bits of values[i] in FP32, first + i), modulo 2^64. `key` stands for the tensor, and `first`
// is the place of the first value in it. One changed value always changes the sum. Deterministic; each value is read
// once.
void checksum_values(uint64_t* sum, const StateArray& values, uint64_t key, size_t first, size_t n, stream_t stream);

}  // namespace llmc
