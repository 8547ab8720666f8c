// The frame of element-wise optimizer updates. A block walks over its part of the master weights and of the optimizer's
// moment, writes both back together with the working copy, and measures the largest new weight. A Rule computes each
// element: Lion's and SGD's are in update.cu, Muon's in muon.cu.
#pragma once
#include <initializer_list>

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/host/launch.h"
#include "llmc/kernels/update.h"

namespace llmc {

constexpr int kUpdateThreads = 256;
constexpr int kUpdatePerThread = 8;
constexpr int kUpdateMeasuredGroups = 4;

// Load and store a thread's eight elements, which are two fours of its warp's 256 (vector.cuh). `left` is the number of
// elements from the first of them on. Missing elements are zeros, and go through the same arithmetic.
template <class T>
LLMC_DEVICE void load_group(const T* p, size_t left, float (&values)[8]) {
    if (left >= kFoursApart + 4) {
        load_fours(p, values);
    } else {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
            const size_t place = place_in_fours(i);
            values[i] = place < left ? to_float(p[place]) : 0.0f;
        }
    }
}
template <class T>
LLMC_DEVICE void store_group(T* p, size_t left, const float (&values)[8]) {
    if (left >= kFoursApart + 4) {
        store_fours(p, values);
    } else {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
            const size_t place = place_in_fours(i);
            if (place < left) p[place] = to<T>(values[i]);
        }
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

// Rule::operator()(p, m, x, decays, learning_rate, grad_scale) changes a weight p and, if it kKeepsMoment, its moment
// m. x is the input: a gradient or a direction. Sums of products are spelled fmaf(). Otherwise a compiler may fuse
// another product in one of a thread's eight places than in the next, and an element's bits would depend on its place
// in a slice.
//
// A block has kGroups * 2048 elements in a row. Measured maxima are reduced over the warp, so a thread takes several
// groups then: one atomic per 1024 elements.
template <class Rule, class Real, class Input, bool kMeasures>
static __global__ void __launch_bounds__(kUpdateThreads, 4)
    update_kernel(float* master, float* moment, Real* working, Fp8State* fp8, const Input* input, size_t count,
                  size_t decay_count, Rule rule, const StepState* state) {
    constexpr int kGroups = kMeasures ? kUpdateMeasuredGroups : 1;
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    uint32_t amax = 0;
    for (int group = 0; group < kGroups; group++) {
        const size_t first = (static_cast<size_t>(blockIdx.x) * kGroups + group) * kUpdateThreads * kUpdatePerThread +
                             first_of_fours(threadIdx.x);
        if (first >= count) break;
        const size_t left = count - first, decayed = decay_count <= first ? 0 : decay_count - first;
        float p[8], m[8] = {}, x[8];
        load_group(master + first, left, p);
        load_group(input + first, left, x);
        if constexpr (Rule::kKeepsMoment) load_group(moment + first, left, m);
        LLMC_UNROLL
        for (int i = 0; i < 8; i++)
            rule(p[i], m[i], x[i], static_cast<size_t>(place_in_fours(i)) < decayed, learning_rate, grad_scale);
        store_group(master + first, left, p);
        if constexpr (Rule::kKeepsMoment) store_group(moment + first, left, m);
        if (working) store_group(working + first, left, p);
        if constexpr (kMeasures) {
            const uint32_t seen = largest_of_group(p, left);
            amax = seen > amax ? seen : amax;
        }
    }
    if constexpr (kMeasures) {
        const float largest = warp_max(float_from_bits(amax));
        if (threadIdx.x % 32 == 0)
            atomicMax(reinterpret_cast<int*>(&fp8->amax_now), static_cast<int>(float_bits(largest)));
    }
}

namespace host {

// Raises fp8's amax to the largest magnitude that a CPU loop found in a part of the new weights (see
// largest_of_group()).
void raise_amax(Fp8State* fp8, uint32_t largest);

constexpr size_t kUpdateTask = 16384;  // elements

// update_kernel's work as a loop. A task has some elements in a row.
template <class Rule, class Real, class Input, bool kMeasures>
void update([[maybe_unused]] const Grid&, float* master, float* moment, Real* working, Fp8State* fp8,
            const Input* input, size_t count, size_t decay_count, Rule rule, const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
#pragma omp parallel for schedule(static) if (count > kUpdateTask)
    for (size_t begin = 0; begin < count; begin += kUpdateTask) {
        const size_t end = begin + kUpdateTask < count ? begin + kUpdateTask : count;
        uint32_t largest = 0;
        for (size_t i = begin; i < end; i++) {
            float p = master[i], m = 0.0f;
            if constexpr (Rule::kKeepsMoment) m = moment[i];
            rule(p, m, to_float(input[i]), i < decay_count, learning_rate, grad_scale);
            master[i] = p;
            if constexpr (Rule::kKeepsMoment) moment[i] = m;
            const uint32_t magnitude = float_bits(p) & kFloatMagnitudeMask;
            largest = magnitude > largest ? magnitude : largest;
        }
        if (working)
            for (size_t i = begin; i < end; i++) working[i] = to<Real>(master[i]);
        if (kMeasures) raise_amax(fp8, largest);
    }
#endif
}

}  // namespace host

// Checks the arguments of an update.
inline void check_update(const char* name, size_t count, size_t decay_count,
                         std::initializer_list<const void*> tensors) {
    if (decay_count > count)
        throw Error(ExitCode::failure, "{}: {} of {} parameters to decay", name, decay_count, count);
    for (const void* p : tensors)
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            throw Error(ExitCode::failure, "{}: pointer {} is not 16-byte aligned; pad slices to 16 bytes", name, p);
}

inline LaunchConfig update_blocks(size_t count, bool measures, stream_t stream) {
    const size_t groups = measures ? kUpdateMeasuredGroups : 1;
    const size_t blocks = div_up<size_t>(count, groups * kUpdateThreads * kUpdatePerThread);
    return {dim3(blocks), kUpdateThreads, 0, stream};
}

// `moment` is nullptr if the Rule keeps none; `working` and `fp8` may be nullptr.
template <class Rule, class Real, class Input>
void run_update(const char* name, float* master, float* moment, Real* working, Fp8State* fp8, const Input* input,
                size_t count, size_t decay_count, const Rule& rule, const StepState* state, stream_t stream) {
    if (count == 0) return;
    check_update(name, count, decay_count, {master, moment, working, input});
    const auto run = [&]<bool kMeasures>() {
        host::launch_or_loop<update_kernel<Rule, Real, Input, kMeasures>, host::update<Rule, Real, Input, kMeasures>>(
            KernelVariant::host_optimizer, update_blocks(count, kMeasures, stream), inout(master, count),
            inout(moment, count), out(working, count), inout(fp8, 1), in(input, count), count, decay_count, rule,
            in(state, 1));
    };
    if (fp8)
        run.template operator()<true>();
    else
        run.template operator()<false>();
}

}  // namespace llmc
