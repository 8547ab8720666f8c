// The frame of element-wise optimizer updates: the walk over groups of weights with the amax of the new ones, its loop
// on the host device, and the kernel of optimizers that keep one moment or none. There a Rule computes each element:
// Lion's and SGD's are in update.cu, Muon's in muon.cu. AdamW (update.cu) shares the walk and the loop.
//
// Each array has a format of its own. A branch on the format is the same for all threads of a launch.
#pragma once
#include <initializer_list>

#include "llmc/device/kernel.cuh"
#include "llmc/device/warp.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/host/launch.h"
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

// Rule::operator()(p, m, x, decays, learning_rate, grad_scale) changes a weight p and, if it kKeepsMoment, its moment
// m. x is the input: a gradient or a direction. Sums of products are spelled fmaf(). Otherwise a compiler may fuse
// another product in one of a thread's eight places than in the next, and an element's bits would depend on its place
// in a slice.
template <class Rule, class Real, bool kMeasures>
static __global__ void __launch_bounds__(kBlockThreads, 4)
    update_kernel(StateArray master, float* moment, Real* working, Fp8State* fp8, StateArray input, size_t count,
                  size_t decay_count, Rule rule, StateRounding rounding, const StepState* state) {
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    update_groups<kMeasures>(fp8, count, decay_count, [&](size_t first, size_t left, size_t decayed) {
        float p[8], m[8] = {}, x[8];
        load_at(master, first, left, p);
        load_at(input, first, left, x);
        if constexpr (Rule::kKeepsMoment) load_group(moment + first, left, m);
        LLMC_UNROLL
        for (int i = 0; i < 8; i++)
            rule(p[i], m[i], x[i], static_cast<size_t>(place_in_fours(i)) < decayed, learning_rate, grad_scale);
        round_masters(master, p, rounding, state->applied, first);
        store_at(master, first, left, p);
        if constexpr (Rule::kKeepsMoment) store_group(moment + first, left, m);
        if (working) store_group(working + first, left, p);
        return kMeasures ? largest_of_group(p, left) : 0u;
    });
}

namespace host {

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
void update([[maybe_unused]] const Grid&, StateArray master, float* moment, Real* working, Fp8State* fp8,
            StateArray input, size_t count, size_t decay_count, Rule rule, StateRounding rounding,
            const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    const auto update = [&](size_t begin, size_t end, float* weights) {
        float copy[kUpdateTask];
        const float* const inputs = floats_of(input, begin, end - begin, copy);
        for (size_t i = begin; i < end; i++) {
            float m = 0.0f;
            if constexpr (Rule::kKeepsMoment) m = moment[i];
            rule(weights[i - begin], m, inputs[i - begin], i < decay_count, learning_rate, grad_scale);
            if constexpr (Rule::kKeepsMoment) moment[i] = m;
        }
    };
    update_in_tasks<kMeasures>(master, working, fp8, count, rounding, *state, update);
#endif
}

}  // namespace host

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

// `input` has gradients, or directions. `moment` is nullptr if the Rule keeps none; `working` and `fp8` may be nullptr.
template <class Rule, class Real>
void run_update(const char* name, const StateArray& master, float* moment, Real* working, Fp8State* fp8,
                const StateArray& input, size_t count, size_t decay_count, const Rule& rule,
                const StateRounding& rounding, const StepState* state, stream_t stream) {
    if (count == 0) return;
    check_update(name, count, decay_count, {master.values, moment, working, input.values}, rounding);
    with_measure(fp8, [&]<bool kMeasures>() {
        host::launch_or_loop<update_kernel<Rule, Real, kMeasures>, host::update<Rule, Real, kMeasures>>(
            update_blocks(count, kMeasures, stream),
            {changed(master, count), inout(moment, count), out(working, count), inout(fp8, 1), read(input, count),
             in(state, 1)},
            master, moment, working, fp8, input, count, decay_count, rule, rounding, state);
    });
}

}  // namespace llmc
