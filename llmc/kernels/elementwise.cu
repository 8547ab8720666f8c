// Kernels that convert and add arrays, and their checksums (elementwise.h).
#include "llmc/kernels/elementwise.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"
#include "llmc/device/math.cuh"
#include "llmc/device/warp.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/host/loops.h"

namespace llmc {
namespace {

unsigned blocks_for(size_t n) { return static_cast<unsigned>(div_up<size_t>(n, kBlockThreads * kPerThread)); }

}  // namespace

// Index of the first of this thread's eight elements, which are two fours of its warp's 256 (vector.cuh). A thread at
// the end that has fewer than eight processes them one by one.
LLMC_DEVICE size_t first_element() {
    return static_cast<size_t>(blockIdx.x) * kBlockThreads * kPerThread + first_of_fours(static_cast<int>(threadIdx.x));
}
constexpr size_t kSpan = kFoursApart + 4;
template <class F>
LLMC_DEVICE void for_each_left(size_t first, size_t n, F&& f) {
    for (int i = 0; i < kPerThread; i++) {
        const size_t at = first + static_cast<size_t>(place_in_fours(i));
        if (at < n) f(at);
    }
}

// ---- cast ----------------------------------------------------------------------------------------------------------

template <class To, class From>
static __global__ void __launch_bounds__(kBlockThreads) cast_kernel(To* out, const From* inp, size_t n) {
    const size_t first = first_element();
    if (first + kSpan <= n) {
        float values[8];
        load_fours(inp + first, values);
        store_fours(out + first, values);
    } else {
        for_each_left(first, n, [&](size_t i) { out[i] = to<To>(to_float(inp[i])); });
    }
}

template <class To, class From>
void cast(To* out_pointer, const From* inp, size_t n, stream_t stream) {
    if (n == 0) return;
    check_aligned("cast", {out_pointer, inp});
    launch<cast_kernel<To, From>>({blocks_for(n), kBlockThreads, 0, stream}, out(out_pointer, n), in(inp, n), n);
}

template void cast<bf16, float>(bf16*, const float*, size_t, stream_t);
template void cast<float, bf16>(float*, const bf16*, size_t, stream_t);

// ---- add and subtract ----------------------------------------------------------------------------------------------

// out[i] = combine(a[i], b[i]) for this thread's elements. `out` may be a or b.
template <class Out, class A, class B, class Combine>
LLMC_DEVICE void combine_elements(Out* out, const A* a, const B* b, size_t n, const Combine& combine) {
    const size_t first = first_element();
    if (first + kSpan <= n) {
        float x[8], y[8];
        load_fours(a + first, x);
        load_fours(b + first, y);
        for (int i = 0; i < 8; i++) x[i] = combine(x[i], y[i]);
        store_fours(out + first, x);
    } else {
        for_each_left(first, n, [&](size_t i) { out[i] = to<Out>(combine(to_float(a[i]), to_float(b[i]))); });
    }
}

static __global__ void __launch_bounds__(kBlockThreads)
    add_kernel(float* out, const float* a, const float* b, size_t n) {
    combine_elements(out, a, b, n, [](float x, float y) { return x + y; });
}

void add(float* out_pointer, const float* a, const float* b, size_t n, stream_t stream) {
    if (n == 0) return;
    check_aligned("add", {out_pointer, a, b});
    launch<add_kernel>({blocks_for(n), kBlockThreads, 0, stream}, out(out_pointer, n), in(a, n), in(b, n), n);
}

template <class T>
static __global__ void __launch_bounds__(kBlockThreads) subtract_kernel(float* out, const T* a, size_t n) {
    combine_elements(out, a, out, n, [](float x, float y) { return x - y; });
}

void subtract_from(float* out, const StateArray& a, size_t n, stream_t stream) {
    if (n == 0) return;
    check_aligned("subtract_from", {out, a.values});
    a.typed([&]<class T>(const T* values) {
        launch<subtract_kernel<T>>({blocks_for(n), kBlockThreads, 0, stream}, inout(out, n), in(values, n), n);
    });
}

// ---- averages of weights --------------------------------------------------------------------------------------------

template <class T>
static __global__ void __launch_bounds__(kBlockThreads)
    add_to_average_kernel(float* average, const T* values, float share, size_t n) {
    combine_elements(average, values, average, n, [share](float value, float before) {
        return share == 1.0f ? value : fmaf(share, value - before, before);
    });
}

void add_to_average(float* average, const StateArray& values, float share, size_t n, stream_t stream) {
    if (n == 0) return;
    check_aligned("add_to_average", {average, values.values});
    values.typed([&]<class T>(const T* weights) {
        launch<add_to_average_kernel<T>>({blocks_for(n), kBlockThreads, 0, stream}, inout(average, n), in(weights, n),
                                         share, n);
    });
}

// ---- gradients in BF16 ---------------------------------------------------------------------------------------------

// A thread's two fours each take their random bits from one word.
static __global__ void __launch_bounds__(kBlockThreads)
    add_gradients_kernel(bf16* gradients, const float* pieces, int added, size_t n, bool first, StateRounding rounding,
                         int64_t batch) {
    const size_t begin = first_element();
    LLMC_UNROLL
    for (int four = 0; four < 2; four++) {
        const size_t at = begin + static_cast<size_t>(four) * kFoursApart;
        if (at >= n) continue;
        const int left = n - at < 4 ? static_cast<int>(n - at) : 4;
        float sum[4] = {}, piece[4] = {};
        for (int i = 0; i < left && !first; i++) sum[i] = to_float(gradients[at + i]);
        for (int p = 0; p < added; p++) {
            const float* const from = pieces + static_cast<size_t>(p) * n + at;
            if (left == 4)
                load4(from, piece);
            else
                for (int i = 0; i < left; i++) piece[i] = from[i];
            const uint64_t bits = gradient_bits(rounding.key, batch + p, rounding.first + at);
            for (int i = 0; i < 4; i++)
                sum[i] = to_float(to_bf16_stochastic(sum[i] + piece[i], static_cast<uint32_t>(bits >> (16 * i))));
        }
        if (left == 4)
            store4(gradients + at, sum);
        else
            for (int i = 0; i < left; i++) gradients[at + i] = to_bf16(sum[i]);
    }
}

void add_gradients(bf16* gradients, const float* pieces, int added, size_t n, bool first, const StateRounding& rounding,
                   int64_t batch, stream_t stream) {
    if (n == 0) return;
    check_aligned("add_gradients", {gradients, pieces});
    if (rounding.first % 4 != 0 || (added > 1 && n % 8 != 0))
        throw Error(ExitCode::failure, "add_gradients: {} pieces of {} gradients from place {} on", added, n,
                    rounding.first);
    launch<add_gradients_kernel>({blocks_for(n), kBlockThreads, 0, stream},
                                 first ? out(gradients, n) : inout(gradients, n),
                                 in(pieces, n * static_cast<size_t>(added)), added, n, first, rounding, batch);
}

// ---- checksum ------------------------------------------------------------------------------------------------------

// A block takes at least this many words or values, so that its sum costs little next to reading them. A large tensor
// gets enough blocks to fill any GPU.
constexpr size_t kWordsPerBlock = 16 * kBlockThreads;
constexpr size_t kChecksumBlocks = 1024;

LLMC_DEVICE uint64_t mix(uint64_t word, size_t place) { return mix64(word + (place + 1) * kGolden64); }

static __global__ void __launch_bounds__(kBlockThreads, kMostBlocks)
    checksum_kernel(uint64_t* sum, const uint8_t* data, size_t bytes) {
    LLMC_SHARED(uint64_t, sums, [kBlockThreads]);
    const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
    const size_t whole = bytes / 8, stride = static_cast<size_t>(gridDim.x) * kBlockThreads;
    const size_t first = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    uint64_t mine = 0;
    for (size_t i = first; i < whole; i += stride) mine += mix(words[i], i);
    if (first == 0 && bytes % 8 != 0) {
        uint64_t last = 0;
        for (size_t i = 0; i < bytes % 8; i++) last |= static_cast<uint64_t>(data[whole * 8 + i]) << (8 * i);
        mine += mix(last, whole);
    }
    mine = block_sum(sums, threadIdx.x, mine);
    if (threadIdx.x == 0) atomic_add(sum, mine);
}

void checksum(uint64_t* sum, const void* data, size_t bytes, stream_t stream) {
    if (bytes == 0) return;
    if (reinterpret_cast<uintptr_t>(data) % 8 != 0)
        throw Error(ExitCode::failure, "checksum: pointer {} is not 8-byte aligned", data);
    const size_t blocks = std::clamp<size_t>(bytes / 8 / kWordsPerBlock, 1, kChecksumBlocks);
    host::launch_or_loop<checksum_kernel, host::checksum>({dim3(blocks), kBlockThreads, 0, stream}, inout(sum, 1),
                                                          in(static_cast<const uint8_t*>(data), bytes), bytes);
}

template <class T>
static __global__ void __launch_bounds__(kBlockThreads, kMostBlocks)
    checksum_values_kernel(uint64_t* sum, const T* values, uint64_t key, size_t first, size_t n) {
    LLMC_SHARED(uint64_t, sums, [kBlockThreads]);
    const size_t stride = static_cast<size_t>(gridDim.x) * kBlockThreads;
    uint64_t mine = 0;
    for (size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < n; i += stride)
        mine += mix(key + float_bits(to_float(values[i])), first + i);
    mine = block_sum(sums, threadIdx.x, mine);
    if (threadIdx.x == 0) atomic_add(sum, mine);
}

void checksum_values(uint64_t* sum, const StateArray& values, uint64_t key, size_t first, size_t n, stream_t stream) {
    if (n == 0) return;
    const size_t blocks = std::clamp<size_t>(n / kWordsPerBlock, 1, kChecksumBlocks);
    values.typed([&]<class T>(const T* data) {
        host::launch_or_loop<checksum_values_kernel<T>, host::checksum_values<T>>(
            {dim3(blocks), kBlockThreads, 0, stream}, inout(sum, 1), in(data, n), key, first, n);
    });
}

}  // namespace llmc
