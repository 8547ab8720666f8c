// The frame of element-wise optimizer updates: the walk over groups of weights with the amax of the new ones, the
// kernel, and its loop on the host device. A Rule computes each element: those of AdamW, Lion and SGD are in update.cu,
// Muon's in muon.cu.
//
// Each array has a format of its own. A branch on the format is the same for all threads of a launch.
#pragma once
#include <initializer_list>

#include "llmc/device/kernel.cuh"
#include "llmc/device/warp.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/host/update.h"
#include "llmc/kernels/update.h"

namespace llmc {

constexpr int kUpdateMeasuredGroups = 4;

// Load and store a thread's eight elements from `first` on. The format must represent stored values exactly.
LLMC_DEVICE void load_at(const StateArray& array, size_t first, size_t left, float (&values)[8]) {
    if (array.format == StateFormat::fp32)
        return load_group(static_cast<const float*>(array.values) + first, left, values);
    if (array.format == StateFormat::bf16)
        return load_group(static_cast<const bf16*>(array.values) + first, left, values);
    const e4m3* const codes = static_cast<const e4m3*>(array.values);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const size_t place = static_cast<size_t>(place_in_fours(i));
        const size_t at = first + place;
        values[i] = place < left ? to_float(codes[at]) * array.scales[at / kStateGroup] : 0.0f;
    }
}
LLMC_DEVICE void store_at(const StateArray& array, size_t first, size_t left, const float (&values)[8]) {
    if (array.format == StateFormat::bf16)
        store_group(static_cast<bf16*>(array.values) + first, left, values);
    else
        store_group(static_cast<float*>(array.values) + first, left, values);
}

// Stores values rounded at random to fp8. All lanes of a warp must call it: sixteen of them share a scale, which all of
// them must have read before one of them writes it.
LLMC_DEVICE void store_fp8(const StateArray& array, size_t first, size_t left, const float (&values)[8],
                           const StateRounding& rounding, int64_t applied) {
    float amax[2] = {};
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) amax[i / 4] = fmaxf(amax[i / 4], fabsf(values[i]));
    group_max_each<kStateGroup / 4>(amax);
    __syncwarp();  // a shuffle does not order accesses to memory
    e4m3* const codes = static_cast<e4m3*>(array.values);
    LLMC_UNROLL
    for (int i = 0; i < 8; i += 2) {
        const size_t place = static_cast<size_t>(place_in_fours(i)), at = first + place;
        const int exponent = group_exponent(amax[i / 4]);
        const uint64_t bits = fp8_bits(rounding.key, applied, rounding.first + at);
        const float inverse = power_of_two(-exponent);
        if (place < left) codes[at] = to_e4m3_stochastic(values[i] * inverse, static_cast<uint32_t>(bits));
        if (place + 1 < left)
            codes[at + 1] = to_e4m3_stochastic(values[i + 1] * inverse, static_cast<uint32_t>(bits >> 32));
        if (place < left && at % kStateGroup == 0) array.scales[at / kStateGroup] = power_of_two(exponent);
    }
}

// Stores a group's two moments, rounded to their formats.
LLMC_DEVICE void store_moments(const StateArray& m_array, const StateArray& v_array, size_t first, size_t left,
                               float (&m)[8], float (&v)[8], const StateRounding& rounding, int64_t applied) {
    const bool m_is_bf16 = m_array.format == StateFormat::bf16;
    LLMC_UNROLL
    for (int i = 0; i < 8 && v_array.format == StateFormat::bf16; i += 2) {
        const size_t place = rounding.first + first + static_cast<size_t>(place_in_fours(i));
        const uint64_t bits = moment_bits(rounding.key, applied, place);
        const uint32_t low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
        if (m_is_bf16) m[i] = to_float(to_bf16_stochastic(m[i], low));
        v[i] = to_float(to_bf16_stochastic(v[i], low >> 16));
        if (m_is_bf16) m[i + 1] = to_float(to_bf16_stochastic(m[i + 1], high));
        v[i + 1] = to_float(to_bf16_stochastic(v[i + 1], high >> 16));
    }
    store_at(v_array, first, left, v);
    if (m_array.format == StateFormat::fp8)
        store_fp8(m_array, first, left, m, rounding, applied);
    else
        store_at(m_array, first, left, m);
}

// Rounds a group's new weights at random to their format.
LLMC_DEVICE void round_masters(const StateArray& masters, float (&p)[8], const StateRounding& rounding, int64_t applied,
                               size_t first) {
    if (masters.format != StateFormat::bf16) return;
    LLMC_UNROLL
    for (int i = 0; i < 8; i += 2) {
        const size_t place = rounding.first + first + static_cast<size_t>(place_in_fours(i));
        const uint64_t bits = master_bits(rounding.key, applied, place);
        p[i] = to_float(to_bf16_stochastic(p[i], static_cast<uint32_t>(bits)));
        p[i + 1] = to_float(to_bf16_stochastic(p[i + 1], static_cast<uint32_t>(bits >> 32)));
    }
}

// Returns the bits of the largest magnitude of a group's new weights, or infinity's if a weight is not finite.
LLMC_DEVICE uint32_t largest_of_group(const float (&p)[8], size_t left) {
    uint32_t amax = 0;
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const bool valid = static_cast<size_t>(place_in_fours(i)) < left;
        const uint32_t magnitude = valid ? float_bits(p[i]) & kFloatMagnitudeMask : 0u;
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax < kFloatInfinityBits ? amax : kFloatInfinityBits;
}

// Calls update(first, left, decayed) for this thread's groups of eight. `first` is the place of a group's first
// element, `left` counts elements from there to the end, and `decayed` those that get weight decay. It returns the bits
// of the largest magnitude of its new weights, and fp8's amax is raised to the largest of all.
//
// A block has kGroups * 2048 elements in a row. Measured maxima are reduced over the warp, so a thread takes several
// groups then: one atomic per 1024 elements. All lanes of a warp call update() if one has elements, because store_fp8()
// needs them; `left` is 0 if they have none.
template <bool kMeasures, class Update>
LLMC_DEVICE void update_groups(Fp8State* fp8, size_t count, size_t decay_count, const Update& update) {
    constexpr int kGroups = kMeasures ? kUpdateMeasuredGroups : 1;
    uint32_t amax = 0;
    for (int group = 0; group < kGroups; group++) {
        const size_t first = (static_cast<size_t>(blockIdx.x) * kGroups + group) * kBlockThreads * kPerThread +
                             first_of_fours(threadIdx.x);
        if (first - threadIdx.x % 32 * 4 >= count) break;
        const size_t left = first < count ? count - first : 0;
        const uint32_t seen = update(first, left, decay_count <= first ? 0 : decay_count - first);
        amax = seen > amax ? seen : amax;
    }
    if constexpr (kMeasures) {
        const float largest = warp_max(float_from_bits(amax));
        if (threadIdx.x % 32 == 0)
            atomicMax(reinterpret_cast<int*>(&fp8->amax_now), static_cast<int>(float_bits(largest)));
    }
}

// Rule::operator()(p, m, v, x, decays, step) changes a weight p and its moments m and v, of which the rule keeps
// kMoments: none, m in FP32, or both in formats of their own. x is a gradient. Rule::step(state) returns the numbers
// that are the same for all elements. Sums of products are spelled fmaf(). Otherwise a compiler may fuse another
// product in one of a thread's eight places than in the next, and an element's bits would depend on its place in a
// slice.
template <class Rule, class Real, bool kMeasures>
static __global__ void __launch_bounds__(kBlockThreads, Rule::kMoments == 2 ? 3 : 4)
    update_kernel(UpdateTensors<Real> t, Fp8State* fp8, size_t count, size_t decay_count, Rule rule,
                  const StepState* state) {
    if (state->skip) return;
    update_groups<kMeasures>(fp8, count, decay_count, [&](size_t first, size_t left, size_t decayed) {
        const auto step = rule.step(*state);
        // decayed_fours[h]: how many elements of the h-th group of four get weight decay.
        const int decayed_fours[2] = {
            static_cast<int>(decayed < 4 ? decayed : 4),
            decayed < kFoursApart ? 0 : static_cast<int>(decayed < kFoursApart + 4 ? decayed - kFoursApart : 4)};
        float p[8], x[8], m[8] = {}, v[8] = {};
        load_at(t.master, first, left, p);
        load_at(t.grad, first, left, x);
        if constexpr (Rule::kMoments == 1) load_group(static_cast<const float*>(t.m.values) + first, left, m);
        if constexpr (Rule::kMoments == 2) {
            load_at(t.m, first, left, m);
            load_at(t.v, first, left, v);
        }
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) rule(p[i], m[i], v[i], x[i], (i & 3) < decayed_fours[i / 4], step);
        // Weights are stored first, because rounding the moments needs their registers.
        round_masters(t.master, p, t.rounding, state->applied, first);
        store_at(t.master, first, left, p);
        if (t.working) store_group(t.working + first, left, p);
        const uint32_t amax = kMeasures ? largest_of_group(p, left) : 0u;
        if constexpr (Rule::kMoments == 1) store_group(static_cast<float*>(t.m.values) + first, left, m);
        if constexpr (Rule::kMoments == 2) store_moments(t.m, t.v, first, left, m, v, t.rounding, state->applied);
        return amax;
    });
}

// Checks the arguments of an update.
inline void check_update(const char* name, size_t count, size_t decay_count, std::initializer_list<const void*> tensors,
                         const StateRounding& rounding) {
    if (rounding.first % 4 != 0)
        throw Error(ExitCode::failure, "{}: place {} is not a multiple of 4", name, rounding.first);
    if (decay_count > count)
        throw Error(ExitCode::failure, "{}: {} of {} parameters to decay", name, decay_count, count);
    check_aligned(name, tensors);
}

inline LaunchConfig update_blocks(size_t count, bool measures, stream_t stream) {
    const size_t groups = measures ? kUpdateMeasuredGroups : 1;
    const size_t blocks = div_up<size_t>(count, groups * kBlockThreads * kPerThread);
    return {dim3(blocks), kBlockThreads, 0, stream};
}

// Calls run<kMeasures>(), the launch of an update that measures an amax if there is an FP8 tensor for it.
template <class Run>
void with_measure(const Fp8State* fp8, const Run& run) {
    fp8 ? run.template operator()<true>() : run.template operator()<false>();
}

// The accesses to a state array.
inline Access changed(const StateArray& array, size_t count) {
    return inout(static_cast<char*>(array.values), count * bytes_of(array.format));
}
inline Access read(const StateArray& array, size_t count) {
    return in(static_cast<const char*>(array.values), count * bytes_of(array.format));
}

template <class Rule, class Real>
void run_update(const char* name, const UpdateTensors<Real>& t, Fp8State* fp8, size_t count, size_t decay_count,
                const Rule& rule, const StepState* state, stream_t stream) {
    if (count == 0) return;
    check_update(name, count, decay_count, {t.master.values, t.m.values, t.v.values, t.working, t.grad.values},
                 t.rounding);
    if constexpr (Rule::kMoments == 1) t.m.template as<float>();  // throws for other formats
    with_measure(fp8, [&]<bool kMeasures>() {
        host::launch_or_loop<update_kernel<Rule, Real, kMeasures>, host::update<Rule, Real, kMeasures>>(
            update_blocks(count, kMeasures, stream),
            {changed(t.master, count), changed(t.m, count), inout(t.m.scales, div_up(count, kStateGroup)),
             changed(t.v, count), out(t.working, count), inout(fp8, 1), read(t.grad, count), in(state, 1)},
            t, fp8, count, decay_count, rule, state);
    });
}

}  // namespace llmc
