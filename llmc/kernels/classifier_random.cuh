// The random bits with which the classifier rounds its gradients to FP8. They are a hash of the scaled gradients and of
// their place, so they need no state, and do not depend on the rank, the chunk of rows, the launch or the loss scale.
#pragma once
#include "llmc/device/math.cuh"

namespace llmc {

// A word for each of eight neighbouring gradients. Its lowest 21 bits are random; neighbours share the 10 that count
// least in one of them. `scaled` holds the gradients as they are to be rounded, `column` is the first one's and
// `target` that of their row. Mixes with multiplications and shifts by 32 bits, which take a GPU half the instructions
// of mix64().
LLMC_HD void random_of_gradients(uint32_t* random, const float* scaled, int target, int column) {
    const auto four = [&](int i) {
        const uint32_t high = pack_bf16x2(scaled[i + 2], scaled[i + 3]);
        return static_cast<uint64_t>(high) << 32 | pack_bf16x2(scaled[i], scaled[i + 1]);
    };
    const auto mix = [](uint64_t x) {
        x *= 0xd6e8feb86659fd93u;
        return x ^ x >> 32;
    };
    const uint64_t place = (static_cast<uint64_t>(target) << 32 | static_cast<uint32_t>(column)) * kGolden64;
    const uint64_t first = mix(mix(four(0) ^ place) ^ four(4)), second = mix(first);
    for (int i = 0; i < 4; i++) {
        const uint64_t half = (i < 2 ? first : second) >> 32 * (i % 2);
        random[2 * i] = static_cast<uint32_t>(half);
        random[2 * i + 1] = static_cast<uint32_t>(half) >> 11;
    }
}

}  // namespace llmc
