// The order of samples: a keyed permutation of [0, n), computed for each index separately. It has no state, so a run
// can resume at any position at once, and the order does not depend on ranks, micro-batches or shard files.
//
// A balanced Feistel network permutes the smallest domain of 4^k >= n values, whatever its round function is. Cycle
// walking (applying it again while the result is >= n) restricts it to [0, n). Because 4^k < 4n, this takes fewer than
// 4 passes on average. See Black and Rogaway, "Ciphers with arbitrary finite domains" (2002).
#pragma once
#include <bit>
#include <cstdint>

#include "llmc/device/math.cuh"

namespace llmc {

// The key of one pass over the data.
inline uint64_t order_key(uint64_t seed, uint64_t epoch) {
    return mix64(mix64(seed + kGolden64) + (epoch + 1) * kGolden64);
}

// The value at `index` (below n) of the permutation of [0, n) with this key.
inline uint64_t permute(uint64_t index, uint64_t n, uint64_t key) {
    constexpr uint64_t rounds = 8;
    if (n <= 1) return 0;
    const int half_bits = (std::bit_width(n - 1) + 1) / 2;
    const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & half_mask;
        for (uint64_t round = 0; round < rounds; ++round) {
            // A half has at most 32 bits, so `round` and `right` never overlap in the hashed value.
            const uint64_t next = left ^ (mix64(key ^ (round << 48) ^ right) & half_mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= n);
    return index;
}

// The sample at a position of the endless training order: pass after pass over n samples, each in its own order.
inline uint64_t sample_at(uint64_t position, uint64_t n, uint64_t seed) {
    return permute(position % n, n, order_key(seed, position / n));
}

}  // namespace llmc
