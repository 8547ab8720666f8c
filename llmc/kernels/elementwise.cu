// Kernels and launchers of elementwise.h.
#include "llmc/kernels/elementwise.h"

#include <initializer_list>

#include "llmc/device/kernel.cuh"

namespace llmc {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

unsigned blocks_for(size_t n) { return static_cast<unsigned>(div_up<size_t>(n, kThreads * kPerThread)); }

void require_aligned(const char* what, std::initializer_list<const void*> pointers) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            throw Error(
                ExitCode::failure,
                strprintf("%s: pointer %p is not 16-byte aligned; start tensors at multiples of 16 bytes", what, p));
}

}  // namespace

// The first of this thread's eight elements, which are two fours of its warp's 256 (vector.cuh); and of the last warps,
// which may have fewer, each in turn.
LLMC_DEVICE size_t first_element() {
    return static_cast<size_t>(blockIdx.x) * kThreads * kPerThread + first_of_fours(static_cast<int>(threadIdx.x));
}
constexpr size_t kSpan = kFoursApart + 4;
template <class F>
LLMC_DEVICE void for_each_left(size_t first, size_t n, F&& f) {
    for (int i = 0; i < kPerThread; i++) {
        const size_t at = first + static_cast<size_t>(place_in_fours(i));
        if (at < n) f(at);
    }
}

// ---- fill ----------------------------------------------------------------------------------------------------------

template <class T>
static __global__ void __launch_bounds__(kThreads) fill_kernel(T* out, float value, size_t n) {
    const size_t first = first_element();
    if (first + kSpan <= n) {
        const float values[8] = {value, value, value, value, value, value, value, value};
        store_fours(out + first, values);
    } else {
        for_each_left(first, n, [&](size_t i) { out[i] = to<T>(value); });
    }
}

template <class T>
void fill(T* out_pointer, float value, size_t n, stream_t stream) {
    if (n == 0) return;
    require_aligned("fill", {out_pointer});
    launch<fill_kernel<T>>({blocks_for(n), kThreads, 0, stream}, {out(out_pointer, n)}, out_pointer, value, n);
}

// ---- cast ----------------------------------------------------------------------------------------------------------

template <class To, class From>
static __global__ void __launch_bounds__(kThreads) cast_kernel(To* out, const From* inp, size_t n) {
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
    require_aligned("cast", {out_pointer, inp});
    launch<cast_kernel<To, From>>({blocks_for(n), kThreads, 0, stream}, {out(out_pointer, n), in(inp, n)}, out_pointer,
                                  inp, n);
}

// ---- add -----------------------------------------------------------------------------------------------------------

template <class Real>
static __global__ void __launch_bounds__(kThreads) add_kernel(Real* out, const Real* a, const Real* b, size_t n) {
    const size_t first = first_element();
    if (first + kSpan <= n) {
        float x[8], y[8];
        load_fours(a + first, x);
        load_fours(b + first, y);
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) x[i] += y[i];
        store_fours(out + first, x);
    } else {
        for_each_left(first, n, [&](size_t i) { out[i] = to<Real>(to_float(a[i]) + to_float(b[i])); });
    }
}

template <class Real>
void add(Real* out_pointer, const Real* a, const Real* b, size_t n, stream_t stream) {
    if (n == 0) return;
    require_aligned("add", {out_pointer, a, b});
    launch<add_kernel<Real>>({blocks_for(n), kThreads, 0, stream}, {out(out_pointer, n), in(a, n), in(b, n)},
                             out_pointer, a, b, n);
}

// ---- transpose -----------------------------------------------------------------------------------------------------

constexpr int kTile = 64;
// Padding of a tile row: one 32-bit word, so that a column's 32 elements lie in 32 different banks.
template <class Real>
constexpr int kTilePadding = 4 / sizeof(Real);

// One block a tile: 4 rows of 64 threads each, 16 passes in and 16 out.
template <class Real>
static __global__ void __launch_bounds__(kThreads) transpose_kernel(Real* out, const Real* inp, int R, int C) {
    LLMC_SHARED(Real, tile, [kTile][kTile + kTilePadding<Real>]);
    constexpr int rows_per_pass = kThreads / kTile;
    const int tiles_per_row = div_up(C, kTile);
    const int row0 = static_cast<int>(blockIdx.x) / tiles_per_row * kTile;
    const int column0 = static_cast<int>(blockIdx.x) % tiles_per_row * kTile;
    const int x = static_cast<int>(threadIdx.x) % kTile, y0 = static_cast<int>(threadIdx.x) / kTile;

    if (column0 + x < C)
        for (int y = y0; y < kTile && row0 + y < R; y += rows_per_pass)
            tile[y][x] = inp[static_cast<size_t>(row0 + y) * C + column0 + x];
    __syncthreads();
    if (row0 + x < R)
        for (int y = y0; y < kTile && column0 + y < C; y += rows_per_pass)
            out[static_cast<size_t>(column0 + y) * R + row0 + x] = tile[x][y];
}

template <class Real>
void transpose(Real* out_pointer, const Real* inp, int R, int C, stream_t stream) {
    if (R <= 0 || C <= 0) throw Error(ExitCode::failure, strprintf("transpose: bad shape (%d, %d)", R, C));
    require_aligned("transpose", {out_pointer, inp});
    const size_t n = static_cast<size_t>(R) * C;
    const size_t tiles = static_cast<size_t>(div_up(R, kTile)) * div_up(C, kTile);
    launch<transpose_kernel<Real>>({dim3{static_cast<unsigned>(tiles)}, kThreads, 0, stream},
                                   {out(out_pointer, n), in(inp, n)}, out_pointer, inp, R, C);
}

template void fill<float>(float*, float, size_t, stream_t);
template void fill<bf16>(bf16*, float, size_t, stream_t);
template void cast<bf16, float>(bf16*, const float*, size_t, stream_t);
template void cast<float, bf16>(float*, const bf16*, size_t, stream_t);
template void add<float>(float*, const float*, const float*, size_t, stream_t);
template void add<bf16>(bf16*, const bf16*, const bf16*, size_t, stream_t);
template void transpose<float>(float*, const float*, int, int, stream_t);
template void transpose<bf16>(bf16*, const bf16*, int, int, stream_t);

}  // namespace llmc
