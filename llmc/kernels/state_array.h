// Arrays of the state that a run keeps of every parameter, each in the number format that a flag gives it: master
// weights (--master), summed gradients (--gradients), AdamW's moments (--adam-moments).
//
// Values are used as FP32 and rounded at random when they are stored in a narrower format, so that their mean is kept.
// Rounded to nearest, a value would stand still as soon as its updates are below half a step of its format. The random
// bits of an element are a function of the run's seed, of the update's number and of the element's place in its unit,
// so they do not depend on the number of ranks.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/base/error.h"
#include "llmc/device/formats.cuh"
#include "llmc/device/math.cuh"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {

// fp8: E4M3 times a power of two for every 64 elements, the least at which none saturates (COAT, arXiv 2410.19313, and
// llmq have E4M3 first moments too). Only AdamW's first moment may have it, because updates of the others are smaller
// than its steps.
enum class StateFormat { fp32, bf16, fp8 };
LLMC_HD constexpr size_t bytes_of(StateFormat format) {
    return format == StateFormat::fp8 ? 1 : format == StateFormat::bf16 ? 2 : 4;
}
constexpr size_t kStateGroup = 64;  // elements that share a scale

// The exponent of a group's scale. With -117 or more, every value of the group is a normal number of BF16, so that
// checkpoints can hold it without loss. `amax` is finite.
LLMC_HD int group_exponent(float amax) {
    const int exponent = block_exponent(amax);
    return exponent < -117 ? -117 : exponent;
}

// The same for values of a group on the host.
inline int group_exponent_of(const float* values, size_t count) {
    float amax = 0;
    for (size_t i = 0; i < count; i++) amax = fmaxf(amax, fabsf(values[i]));
    return group_exponent(amax);
}

struct StateArray {
    void* values = nullptr;
    StateFormat format = StateFormat::fp32;
    float* scales = nullptr;  // one per group of elements; nullptr unless fp8

    StateArray() = default;
    StateArray(void* memory, StateFormat of, float* scales_of = nullptr)
        : values(memory), format(of), scales(scales_of) {}
    LLMC_HD StateArray(float* floats) : values(floats), format(StateFormat::fp32) {}
    LLMC_HD StateArray(bf16* halves) : values(halves), format(StateFormat::bf16) {}
    // For arrays that are only read.
    StateArray(const float* floats) : StateArray(const_cast<float*>(floats)) {}
    StateArray(const bf16* halves) : StateArray(const_cast<bf16*>(halves)) {}

    // The same array from element i on, in fp8 a multiple of kStateGroup.
    LLMC_HD StateArray from(size_t i) const {
        StateArray rest = *this;
        if (values) rest.values = static_cast<char*>(values) + i * bytes_of(format);
        if (scales) rest.scales = scales + i / kStateGroup;
        return rest;
    }
    // T is float or bf16, as the format says.
    template <class T>
    T* as() const {
        if (sizeof(T) != bytes_of(format)) throw Error(ExitCode::failure, "state was asked for in another format");
        return static_cast<T*>(values);
    }
    // Calls use(pointer) with the values as float* or bf16*. Not for fp8.
    template <class Use>
    void typed(const Use& use) const {
        format == StateFormat::bf16 ? use(static_cast<bf16*>(values)) : use(static_cast<float*>(values));
    }
};

// Source of the random bits of a call.
struct StateRounding {
    uint64_t key = 0;  // a function of the run's seed and of the group of tensors whose places count from 0
    size_t first = 0;  // place of the call's first element, a multiple of 4, and of kStateGroup with an array in fp8
};

// 64 bits for the elements `place`, which is even, and `place` + 1 in the `applied`-th update. From the low end on: 16
// bits each for m and v of the first, then for m and v of the second.
LLMC_HD uint64_t moment_bits(uint64_t key, int64_t applied, uint64_t place) {
    return mix64(mix64(key + static_cast<uint64_t>(applied) * kGolden64) + place / 2 * kGolden64);
}
// The same for their master weights: 32 bits each.
LLMC_HD uint64_t master_bits(uint64_t key, int64_t applied, uint64_t place) {
    return moment_bits(~key, applied, place);
}

// The same for their first moments in fp8: 32 bits each.
LLMC_HD uint64_t fp8_bits(uint64_t key, int64_t applied, uint64_t place) {
    return moment_bits(key ^ 0x5555555555555555u, applied, place);
}
// 64 bits for four elements from `place` on, a multiple of 4, in the `batch`-th addition of a step to their gradients:
// 16 bits each.
LLMC_HD uint64_t gradient_bits(uint64_t key, int64_t batch, uint64_t place) {
    return mix64(mix64(key + static_cast<uint64_t>(batch) * kGolden64) + place / 4 * kGolden64);
}

}  // namespace llmc
