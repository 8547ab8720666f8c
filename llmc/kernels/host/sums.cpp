// Loops that sum up columns of a matrix, in the order of column_sums.cuh, squares of a gradient, and checksums.
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {

// sum_part_of_columns() of a whole grid. add(sums, row, column, n): adds n columns' values of the row to `sums`.
template <class Add>
static void sum_columns(const Grid& grid, float* parts, int N, int C, int lanes, const Add& add) {
    constexpr int kThreads = 256, kRowsAtOnce = 4;
    const int slabs = static_cast<int>(grid.grid.x), count = static_cast<int>(grid.grid.y), width = lanes * 8;
    const int rows_per_pass = kThreads / lanes, group = rows_per_pass * kRowsAtOnce;
#pragma omp parallel for schedule(static) if (slabs * count > 1)
    for (int task = 0; task < slabs * count; task++) {
        const int part = task / slabs, column = task % slabs * width, n = std::min(width, C - column);
        float sums[kThreads * 8 + kLanes] = {};
        for (int first = part * group; first < N; first += count * group)
            for (int row = first; row < std::min(first + group, N); row++)
                add(sums + (row - first) % rows_per_pass * width, row, column, n);
        for (int c = 0; c < n; c += kLanes) {
            Floats total{};
            for (int r = 0; r < rows_per_pass; r++) total += load_first(sums + r * width + c, n - c);
            store_first(parts + static_cast<size_t>(part) * C + column + c, total, n - c);
        }
    }
}

template <class Real>
void bias_gradient(const Grid& grid, float* parts, const Real* dout, int N, int C, int lanes) {
    sum_columns(grid, parts, N, C, lanes, [=](float* sums, int row, int column, int n) {
        const Real* from = dout + static_cast<size_t>(row) * C + column;
        for (int c = 0; c < n; c += kLanes)
            store_first(sums + c, load_first(sums + c, n - c) + load_first(from + c, n - c), n - c);
    });
}

template <class Real>
void gelu_backward(const Grid& grid, Real* dinp, float* parts, const Real* dout, const Real* inp, int N, int C,
                   int lanes) {
    sum_columns(grid, parts, N, C, lanes, [=](float* sums, int row, int column, int n) {
        const size_t at = static_cast<size_t>(row) * C + column;
        for (int c = 0; c < n; c += kLanes) {
            const Floats d = load_first(dout + at + c, n - c) * derivative_of(Gelu(), load_first(inp + at + c, n - c));
            store_first(dinp + at + c, d, n - c);
            store_first(sums + c, load_first(sums + c, n - c) + d, n - c);
        }
    });
}

void reduce_column_parts(const Grid&, float* first, float* second, const float* parts, int count, int columns,
                         int split, bool accumulate) {
    constexpr int kParts = 32;  // sums that are added up side by side, as the kernel does
#pragma omp parallel for schedule(static) if (static_cast <size_t>(count) * columns > 32768)
    for (int c = 0; c < columns; c += 8) {
        float total[8] = {};
        for (int p = 0; p < std::min(kParts, count); p++) {
            float sum[8] = {};
            for (int at = p; at < count; at += kParts)
                for (int i = 0; i < 8; i++) sum[i] += parts[static_cast<size_t>(at) * columns + c + i];
            for (int i = 0; i < 8; i++) total[i] += sum[i];
        }
        float* const to = c < split ? first + c : second + (c - split);
        for (int i = 0; i < 8; i++) to[i] = accumulate ? to[i] + total[i] : total[i];
    }
}

template <class T>
void global_norm(const Grid& grid, double* partials, const T* grad, size_t n) {
    constexpr size_t kEightsOfBlock = 256;
    const size_t blocks = grid.grid.x;
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t block = 0; block < blocks; block++) {
        double sums[kEightsOfBlock] = {};
        for (size_t first = block * kEightsOfBlock * 8; first < n; first += blocks * kEightsOfBlock * 8)
            for (size_t i = 0; i < kEightsOfBlock * 8 && first + i < n; i += kLanes) {
                const size_t left = n - first - i;
                const Floats g = left >= static_cast<size_t>(kLanes)
                                     ? load(grad + first + i)
                                     : load_first(grad + first + i, static_cast<int>(left));
                const Floats squares = sum_of_eights(g * g);
                for (int e = 0; e < kEights; e++) sums[i / 8 + e] += static_cast<double>(squares[e * 8]);
            }
        partials[block] = tree_sum(sums);
    }
}

void add_partials(const Grid&, double* sum, const double* partials, size_t n) {
    double sums[256] = {};
    add_in_turn(sums, n, [=](size_t i) { return partials[i]; });
    *sum = tree_sum(sums);
}

static LLMC_INLINE uint64_t mix(uint64_t word, size_t place) { return mix64(word + (place + 1) * kGolden64); }

void checksum(const Grid&, uint64_t* sum, const uint8_t* data, size_t bytes) {
    const size_t whole = bytes / 8;
    uint64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total) if (whole > 16384)
    for (size_t i = 0; i < whole; i++) {
        uint64_t word;
        std::memcpy(&word, data + i * 8, 8);
        total += mix(word, i);
    }
    uint64_t last = 0;
    std::memcpy(&last, data + whole * 8, bytes % 8);
    *sum += bytes % 8 != 0 ? total + mix(last, whole) : total;
}

template <class T>
void checksum_values(const Grid&, uint64_t* sum, const T* values, uint64_t key, size_t first, size_t n) {
    uint64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total) if (n > 16384)
    for (size_t i = 0; i < n; i++) total += mix(key + float_bits(to_float(values[i])), first + i);
    *sum += total;
}

LLMC_INSTANTIATE_BOTH(global_norm, float, bf16);
LLMC_INSTANTIATE_BOTH(checksum_values, float, bf16);
LLMC_INSTANTIATE_BOTH(bias_gradient, float, bf16);
LLMC_INSTANTIATE_BOTH(gelu_backward, float, bf16);

}  // namespace llmc::host
