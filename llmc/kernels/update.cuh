// The frame of element-wise optimizer updates: the walk over groups of weights with the amax of the new ones, its loop
// on the host device, and the kernel of optimizers that keep one moment or none. There a Rule computes each element:
// Lion's and SGD's are in update.cu, Muon's in muon.cu. AdamW (update.cu) shares the walk and the loop.
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

// Calls update(first, left, decayed) for this thread's groups of eight. `first` is the place of a group's first
// element, `left` counts elements from there to the end, and `decayed` those that get weight decay. It returns the bits
// of the largest magnitude of its new weights, and fp8's amax is raised to the largest of all.
//
// A block has kGroups * 2048 elements in a row. Measured maxima are reduced over the warp, so a thread takes several
// groups then: one atomic per 1024 elements.
template <bool kMeasures, class Update>
LLMC_DEVICE void update_groups(Fp8State* fp8, size_t count, size_t decay_count, const Update& update) {
    constexpr int kGroups = kMeasures ? kUpdateMeasuredGroups : 1;
    uint32_t amax = 0;
    for (int group = 0; group < kGroups; group++) {
        const size_t first = (static_cast<size_t>(blockIdx.x) * kGroups + group) * kUpdateThreads * kUpdatePerThread +
                             first_of_fours(threadIdx.x);
        if (first >= count) break;
        const uint32_t seen = update(first, count - first, decay_count <= first ? 0 : decay_count - first);
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
template <class Rule, class Real, class Input, bool kMeasures>
static __global__ void __launch_bounds__(kUpdateThreads, 4)
    update_kernel(float* master, float* moment, Real* working, Fp8State* fp8, const Input* input, size_t count,
                  size_t decay_count, Rule rule, const StepState* state) {
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    update_groups<kMeasures>(fp8, count, decay_count, [&](size_t first, size_t left, size_t decayed) {
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
        return kMeasures ? largest_of_group(p, left) : 0u;
    });
}

namespace host {

constexpr size_t kUpdateTask = 16384;  // elements

// The kernels' work as a loop of the host device (host/launch.h). A task has some elements in a row, and update(begin,
// end) changes their weights. It returns the bits of the largest magnitude of them.
template <bool kMeasures, class Real, class Update>
void update_in_tasks(const float* master, Real* working, [[maybe_unused]] Fp8State* fp8, size_t count,
                     const Update& update) {
#pragma omp parallel for schedule(static) if (count > kUpdateTask)
    for (size_t begin = 0; begin < count; begin += kUpdateTask) {
        const size_t end = begin + kUpdateTask < count ? begin + kUpdateTask : count;
        [[maybe_unused]] const uint32_t largest = update(begin, end);
        if (working)
            for (size_t i = begin; i < end; i++) working[i] = to<Real>(master[i]);
        if constexpr (kMeasures) {
            const float amax = float_from_bits(largest < kFloatInfinityBits ? largest : kFloatInfinityBits);
#pragma omp critical(llmc_fp8_state)
            fp8->amax_now = amax > fp8->amax_now ? amax : fp8->amax_now;
        }
    }
}

template <class Rule, class Real, class Input, bool kMeasures>
void update([[maybe_unused]] const Grid&, float* master, float* moment, Real* working, Fp8State* fp8,
            const Input* input, size_t count, size_t decay_count, Rule rule, const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    update_in_tasks<kMeasures>(master, working, fp8, count, [&](size_t begin, size_t end) {
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
        return largest;
    });
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

// Calls run<kMeasures>(), the launch of an update that measures an amax if there is an FP8 tensor for it.
template <class Run>
void with_measure(const Fp8State* fp8, const Run& run) {
    fp8 ? run.template operator()<true>() : run.template operator()<false>();
}

// `moment` is nullptr if the Rule keeps none; `working` and `fp8` may be nullptr.
template <class Rule, class Real, class Input>
void run_update(const char* name, float* master, float* moment, Real* working, Fp8State* fp8, const Input* input,
                size_t count, size_t decay_count, const Rule& rule, const StepState* state, stream_t stream) {
    if (count == 0) return;
    check_update(name, count, decay_count, {master, moment, working, input});
    with_measure(fp8, [&]<bool kMeasures>() {
        host::launch_or_loop<update_kernel<Rule, Real, Input, kMeasures>, host::update<Rule, Real, Input, kMeasures>>(
            KernelVariant::host_optimizer, update_blocks(count, kMeasures, stream), inout(master, count),
            inout(moment, count), out(working, count), inout(fp8, 1), in(input, count), count, decay_count, rule,
            in(state, 1));
    });
}

}  // namespace llmc
