// Embedding kernels (embedding.h), and the sort of the tokens on the host.
#include "llmc/kernels/embedding.h"

#include <algorithm>
#include <cstring>

#include "llmc/device/kernel.cuh"
#include "llmc/device/registers.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc {

// ---- forward: one warp a token -------------------------------------------------------------------------------------

template <class Real>
static __global__ void __launch_bounds__(256) embedding_forward_kernel(Real* out, const int* tokens, const Real* wte,
                                                                       const Real* wpe, int rows, int T, int C, int V) {
    const int row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    const int token = tokens[row];
    const bool known = token >= 0 && token < V;
    const Real* token_row = wte + static_cast<size_t>(known ? token : 0) * C;
    const Real* position_row = wpe ? wpe + static_cast<size_t>(row % T) * C : nullptr;
    for (int c = threadIdx.x % 32 * 8; c < C; c += 256) {
        float x[8], y[8] = {};
        load8(token_row + c, x);
        if (position_row) load8(position_row + c, y);
        for (int i = 0; i < 8; i++) x[i] = known ? x[i] + y[i] : float_from_bits(kFloatMagnitudeMask);
        store8(out + static_cast<size_t>(row) * C + c, x);
    }
}

static int check_embedding(const char* launcher, int B, int T, int C, int V) {
    check_rows(launcher, B, C);
    check_rows(launcher, T, C);
    if (V < 1) throw Error(ExitCode::failure, "{}: V={} tokens; needs at least 1", launcher, V);
    const long long rows = static_cast<long long>(B) * T;
    if (rows > 1 << 29) {
        throw Error(ExitCode::failure, "{}: B*T={}; at most 2^29 tokens a micro-step", launcher, rows);
    }
    return static_cast<int>(rows);
}

template <class Real>
void embedding_forward(Real* out, const int* tokens, const Real* wte, const Real* wpe, int B, int T, int C, int V,
                       stream_t stream) {
    const int rows = check_embedding("embedding_forward", B, T, C, V);
    const size_t n = static_cast<size_t>(rows) * C;
    host::launch_or_loop<embedding_forward_kernel<Real>, host::embedding_forward<Real>>(
        {dim3(div_up(rows, 8)), dim3(256), 0, stream}, llmc::out(out, n), in(tokens, rows),
        in(wte, static_cast<size_t>(V) * C), in(wpe, wpe ? static_cast<size_t>(T) * C : 0), rows, T, C, V);
}

// ---- grouping the tokens (host) ------------------------------------------------------------------------------------

size_t token_sort_size(int n) { return 3 * static_cast<size_t>(n) + 2; }

void sort_tokens(int* packed, const int* tokens, int n) {
    constexpr int kBits = 11, kBuckets = 1 << kBits;  // two passes for every vocabulary up to 4 M
    int *ids = packed + 1, *starts = ids + n, *rows = starts + n + 1;
    int largest = 0;
    for (int i = 0; i < n; i++) {
        if (tokens[i] < 0) {
            throw Error(ExitCode::failure, "sort_tokens: token {} at position {} is negative", tokens[i], i);
        }
        largest = std::max(largest, tokens[i]);
    }
    // Radix sort of row numbers by token, from the low bits up, between `rows` and the memory of `starts`, which is
    // filled afterwards.
    int *from = starts, *to = rows;
    for (int i = 0; i < n; i++) from[i] = i;
    for (int shift = 0; shift < 31 && (shift == 0 || largest >> shift != 0); shift += kBits) {
        int ends[kBuckets + 1] = {};
        for (int i = 0; i < n; i++) ends[((tokens[i] >> shift) & (kBuckets - 1)) + 1]++;
        for (int b = 0; b < kBuckets; b++) ends[b + 1] += ends[b];
        for (int i = 0; i < n; i++) to[ends[(tokens[from[i]] >> shift) & (kBuckets - 1)]++] = from[i];
        std::swap(from, to);
    }
    if (from != rows) std::memcpy(rows, from, sizeof(int) * static_cast<size_t>(n));

    int distinct = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && tokens[rows[i]] == tokens[rows[i - 1]]) continue;
        ids[distinct] = tokens[rows[i]];
        starts[distinct++] = i;
    }
    packed[0] = distinct;
    std::fill(ids + distinct, ids + n, -1);
    std::fill(starts + distinct, starts + n + 1, n);
}

// ---- backward ------------------------------------------------------------------------------------------------------

template <class Real>
LLMC_DEVICE void add_values(float (&sum)[8], const Packed8<Real>& values) {
    float x[8];
    values.get(x);
    for (int i = 0; i < 8; i++) sum[i] += x[i];
}

// sum += dout[row_of(j)] for j = begin, begin + step, ... in this order: 8 columns, with kAtOnce rows in flight.
template <int kAtOnce, class Real, class RowOf>
LLMC_DEVICE void sum_rows_in_order(float (&sum)[8], const Real* dout, int column, int C, int begin, int end, int step,
                                   RowOf row_of) {
    int j = begin;
    for (; j + (kAtOnce - 1) * step < end; j += kAtOnce * step) {
        Packed8<Real> x[kAtOnce];
        LLMC_UNROLL
        for (int k = 0; k < kAtOnce; k++) x[k].load(dout + static_cast<size_t>(row_of(j + k * step)) * C + column);
        issue_loads_first();
        LLMC_UNROLL
        for (int k = 0; k < kAtOnce; k++) add_values(sum, x[k]);
    }
    for (; j < end; j += step) {
        Packed8<Real> x;
        x.load(dout + static_cast<size_t>(row_of(j)) * C + column);
        add_values(sum, x);
    }
}

LLMC_DEVICE void add_to(float* target, const float (&sum)[8]) {
    float x[8];
    load8(target, x);
    for (int i = 0; i < 8; i++) x[i] += sum[i];
    store8(target, x);
}

constexpr int kLongSegment = 64;  // tokens that occur more often are shared by the block's eight warps
// Rows in flight. A frequent token has thousands of rows that one block adds in turn, so only loads in flight hide
// their latency: 128 bytes a thread.
constexpr int kAtOnce = 4;
template <class Real>
constexpr int kAtOnceOfLong = 16 / sizeof(Real);

// A block has 8 tokens and 256 columns. Each warp takes one token; then all warps share the tokens that occur often.
template <class Real>
static __global__ void __launch_bounds__(256)
    embedding_backward_tokens_kernel(float* dwte, const int* sorted, const Real* dout, int n, int C, int V) {
    LLMC_SHARED(float, sums, [8 * 256]);
    const int distinct = sorted[0], first = blockIdx.x * 8;
    if (first >= distinct) return;
    const int *ids = sorted + 1, *starts = ids + n, *rows = starts + n + 1;
    const int warp = threadIdx.x / 32, column = blockIdx.y * 256 + threadIdx.x % 32 * 8;
    const auto row_of = [rows](int j) { return rows[j]; };
    const auto wanted = [=](int i) { return i < distinct && ids[i] >= 0 && ids[i] < V; };

    const int mine = first + warp;
    if (wanted(mine) && column < C) {
        const int begin = starts[mine], end = starts[mine + 1];
        if (end - begin <= kLongSegment) {
            float sum[8] = {};
            sum_rows_in_order<kAtOnce>(sum, dout, column, C, begin, end, 1, row_of);
            add_to(dwte + static_cast<size_t>(ids[mine]) * C + column, sum);
        }
    }
    for (int i = first; i < first + 8; i++) {  // the same for every thread, barriers included
        if (!wanted(i)) continue;
        const int begin = starts[i], end = starts[i + 1];
        if (end - begin <= kLongSegment) continue;
        float sum[8] = {};
        if (column < C) sum_rows_in_order<kAtOnceOfLong<Real>>(sum, dout, column, C, begin + warp, end, 8, row_of);
        store8(&sums[threadIdx.x * 8], sum);  // (8 warps, 256 columns)
        __syncthreads();
        const int c = blockIdx.y * 256 + threadIdx.x;
        if (c < C) {
            float total = 0.0f;
            for (int w = 0; w < 8; w++) total += sums[w * 256 + threadIdx.x];
            dwte[static_cast<size_t>(ids[i]) * C + c] += total;
        }
        __syncthreads();
    }
}

// One warp for each position and 256 columns.
template <class Real>
static __global__ void __launch_bounds__(256)
    embedding_backward_positions_kernel(float* dwpe, const Real* dout, int B, int T, int C) {
    const int t = blockIdx.x * 8 + threadIdx.x / 32, column = blockIdx.y * 256 + threadIdx.x % 32 * 8;
    if (t >= T || column >= C) return;
    float sum[8] = {};
    sum_rows_in_order<kAtOnce>(sum, dout, column, C, 0, B, 1, [=](int b) { return b * T + t; });
    add_to(dwpe + static_cast<size_t>(t) * C + column, sum);
}

template <class Real>
void embedding_backward(float* dwte, float* dwpe, const int* sorted, const Real* dout, int B, int T, int C, int V,
                        stream_t stream) {
    const int rows = check_embedding("embedding_backward", B, T, C, V);
    const size_t n = static_cast<size_t>(rows) * C;
    const unsigned slabs = div_up(C, 256);
    host::launch_or_loop<embedding_backward_tokens_kernel<Real>, host::embedding_backward_tokens<Real>>(
        {dim3(div_up(rows, 8), slabs), dim3(256), 0, stream}, inout(dwte, static_cast<size_t>(V) * C),
        in(sorted, token_sort_size(rows)), in(dout, n), rows, C, V);
    if (!dwpe) return;
    host::launch_or_loop<embedding_backward_positions_kernel<Real>, host::embedding_backward_positions<Real>>(
        {dim3(div_up(T, 8), slabs), dim3(256), 0, stream}, inout(dwpe, static_cast<size_t>(T) * C), in(dout, n), B, T,
        C);
}

LLMC_INSTANTIATE_BOTH(embedding_forward, float, bf16);
LLMC_INSTANTIATE_BOTH(embedding_backward, float, bf16);

}  // namespace llmc
