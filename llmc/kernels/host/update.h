// Loops of the optimizer updates (launch.h), for the kernels of update.cuh and clip.cu.
#pragma once
#include "llmc/device/formats.cuh"
#include "llmc/device/math.cuh"
#include "llmc/kernels/host/launch.h"
#include "llmc/kernels/update.h"

namespace llmc::host {

constexpr size_t kUpdateTask = 16384;  // elements

// The elements of a task as floats: in place if the array is FP32, otherwise in a copy.
inline float* floats_of(const StateArray& array, size_t begin, size_t count, float* copy) {
    if (array.format == StateFormat::fp32) return static_cast<float*>(array.values) + begin;
    const bf16* const halves = static_cast<const bf16*>(array.values) + begin;
    const e4m3* const codes = static_cast<const e4m3*>(array.values) + begin;
    if (array.format == StateFormat::bf16)
        for (size_t i = 0; i < count; i++) copy[i] = to_float(halves[i]);
    else
        for (size_t i = 0; i < count; i++) copy[i] = to_float(codes[i]) * array.scales[(begin + i) / kStateGroup];
    return copy;
}
// Writes a task's copy back, rounded at random. bits(i) gives the random bits of element i of the array: 16, or 32 in
// fp8. There a task begins with a group.
template <class Bits>
void put_back_fp8(const StateArray& array, size_t begin, size_t count, const float* copy, const Bits& bits) {
    e4m3* const codes = static_cast<e4m3*>(array.values) + begin;
    for (size_t group = 0; group < count; group += kStateGroup) {
        const size_t end = group + kStateGroup < count ? group + kStateGroup : count;
        const int exponent = group_exponent_of(copy + group, end - group);
        array.scales[(begin + group) / kStateGroup] = power_of_two(exponent);
        for (size_t i = group; i < end; i++)
            codes[i] = to_e4m3_stochastic(copy[i] * power_of_two(-exponent), bits(begin + i));
    }
}
template <class Bits>
void put_back(const StateArray& array, size_t begin, size_t count, float* copy, const Bits& bits) {
    if (array.format == StateFormat::fp32) return;
    if (array.format == StateFormat::fp8) return put_back_fp8(array, begin, count, copy, bits);
    bf16* const values = static_cast<bf16*>(array.values) + begin;
    for (size_t i = 0; i < count; i++) {
        values[i] = to_bf16_stochastic(copy[i], bits(begin + i));
        copy[i] = to_float(values[i]);
    }
}
// Random bits of two neighbours come from one word.
inline uint32_t half_of(uint64_t bits, size_t i) { return static_cast<uint32_t>(i % 2 == 0 ? bits : bits >> 32); }

// The kernels' work as a loop of the host device (host/launch.h). A task has some elements in a row, and update(begin,
// end, weights) changes their weights, given as floats.
template <bool kMeasures, class Real, class Update>
void update_in_tasks(const StateArray& master, Real* working, [[maybe_unused]] Fp8State* fp8, size_t count,
                     const StateRounding& rounding, const StepState& state, const Update& update) {
#pragma omp parallel for schedule(static) if (count > kUpdateTask)
    for (size_t begin = 0; begin < count; begin += kUpdateTask) {
        const size_t end = begin + kUpdateTask < count ? begin + kUpdateTask : count;
        float copy[kUpdateTask];
        float* const weights = floats_of(master, begin, end - begin, copy);
        update(begin, end, weights);
        put_back(master, begin, end - begin, weights, [&](size_t i) {
            return half_of(master_bits(rounding.key, state.applied, rounding.first + i / 2 * 2), i);
        });
        if (working)
            for (size_t i = begin; i < end; i++) working[i] = to<Real>(weights[i - begin]);
        if constexpr (kMeasures) {
            uint32_t largest = 0;
            for (size_t i = 0; i < end - begin; i++) {
                const uint32_t magnitude = float_bits(weights[i]) & kFloatMagnitudeMask;
                largest = magnitude > largest ? magnitude : largest;
            }
            const float amax = float_from_bits(largest < kFloatInfinityBits ? largest : kFloatInfinityBits);
#pragma omp critical(llmc_fp8_state)
            fp8->amax_now = amax > fp8->amax_now ? amax : fp8->amax_now;
        }
    }
}

template <class Rule, class Real, bool kMeasures>
void update([[maybe_unused]] const Grid&, UpdateTensors<Real> t, Fp8State* fp8, size_t count, size_t decay_count,
            Rule rule, const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    const auto step = rule.step(*state);
    const auto update = [&](size_t begin, size_t end, float* weights) {
        const size_t n = end - begin, decayed = decay_count < begin ? 0 : decay_count - begin;
        float m_copy[kUpdateTask], v_copy[kUpdateTask], input_copy[kUpdateTask];
        float* const first = Rule::kMoments > 0 ? floats_of(t.m, begin, n, m_copy) : nullptr;
        float* const second = Rule::kMoments > 1 ? floats_of(t.v, begin, n, v_copy) : nullptr;
        const float* const inputs = floats_of(t.grad, begin, n, input_copy);
#pragma GCC ivdep
        for (size_t i = 0; i < n; i++) {
            float p = weights[i], m = Rule::kMoments > 0 ? first[i] : 0.0f, v = Rule::kMoments > 1 ? second[i] : 0.0f;
            rule(p, m, v, inputs[i], i < decayed, step);
            weights[i] = p;
            if constexpr (Rule::kMoments > 0) first[i] = m;
            if constexpr (Rule::kMoments > 1) second[i] = v;
        }
        const auto bits = [&](size_t i, bool in_fp8) {
            const uint64_t key = t.rounding.key;
            const size_t place = t.rounding.first + i / 2 * 2;
            return half_of(in_fp8 ? fp8_bits(key, state->applied, place) : moment_bits(key, state->applied, place), i);
        };
        const bool m_in_fp8 = t.m.format == StateFormat::fp8;
        if constexpr (Rule::kMoments > 0) put_back(t.m, begin, n, first, [&](size_t i) { return bits(i, m_in_fp8); });
        if constexpr (Rule::kMoments > 1)
            put_back(t.v, begin, n, second, [&](size_t i) { return bits(i, false) >> 16; });
    };
    update_in_tasks<kMeasures>(t.master, t.working, fp8, count, t.rounding, *state, update);
#endif
}

}  // namespace llmc::host
