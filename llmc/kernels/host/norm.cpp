// Loops of layer norm and RMS norm, forward and backward, plain and quantizing. A row is processed in FP32 in memory,
// and its sums have the order of the kernels' teams of threads (norm_row.cuh).
#include <cmath>
#include <vector>

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/quantize.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {
namespace {

constexpr int kMostWarps = 16;  // warps in a team

// Sums of a team's threads. A thread has eight neighbouring columns, and again eight every `warps` * 256 columns.
struct TeamSum {
    int warps;
    Floats lanes[kMostWarps * 256 / kLanes];

    explicit TeamSum(int warps_) : warps(warps_) { std::fill(lanes, lanes + vectors(), Floats{}); }
    int vectors() const { return warps * 256 / kLanes; }
    LLMC_INLINE Floats& at(int column) { return lanes[column / kLanes % vectors()]; }
    // The team's sum, if each lane holds the sum of its thread.
    float sum(int C) {
        float total = 0.0f;
        for (int w = 0; w < warps; w++) {
            const float of_warp = warp_sum(lanes + w * 256 / kLanes, C - w * 256);
            total = w == 0 ? of_warp : total + of_warp;
        }
        return total;
    }
    // The team's sum, if each lane holds the sum of a column.
    float sum_columns(int C) {
        for (int i = 0; i < std::min(vectors(), (C + kLanes - 1) / kLanes); i++) lanes[i] = sum_of_eights(lanes[i]);
        return sum(C);
    }
};

template <class Real>
struct ForwardCall {
    const Real *inp, *weight, *shift;
    float *mean, *rstd;
    float eps;
    int C, warps;
};

// Normalises one row into x, which has room for whole vectors.
template <bool kLayer, class Real>
void norm_row(float* x, const ForwardCall<Real>& t, int row) {
    const int C = t.C;
    const size_t at = static_cast<size_t>(row) * C;
    TeamSum sums(t.warps), squares(t.warps);
    for (int c = 0; c < C; c += kLanes) {
        const Floats v = load_first(t.inp + at + c, C - c);
        store(x + c, v);
        if (kLayer) sums.at(c) += v;
    }
    const float scale = 1.0f / static_cast<float>(C), mean = kLayer ? sums.sum_columns(C) * scale : 0.0f;
    for (int c = 0; c < C; c += kLanes) {
        const Floats distance = first_lanes(load(x + c) - mean, C - c);
        squares.at(c) += distance * distance;
    }
    const float rstd = 1.0f / sqrtf(squares.sum_columns(C) * scale + t.eps);
    if (t.rstd) {
        if (kLayer) t.mean[row] = mean;
        t.rstd[row] = rstd;
    }
    for (int c = 0; c < C; c += kLanes) {
        Floats v = (kLayer ? load(x + c) - mean : load(x + c)) * rstd;
        if (t.weight) v *= load_first(t.weight + c, C - c);
        if (kLayer) v += load_first(t.shift + c, C - c);
        store(x + c, v);
    }
}

int padded(int C) { return (C + kLanes - 1) / kLanes * kLanes; }

template <class Real>
struct BackwardCall {
    Real* dinp;
    const Real *dresidual, *dout, *inp, *weight;
    const float *mean, *rstd;
    int C, warps;
};

// Writes one row's gradient, plus the residual's gradient, to d, and adds its terms to dweight and dshift. `norm` is
// scratch.
template <bool kLayer, class Real>
void norm_row_backward(float* d, float* norm, float* dweight, float* dshift, const BackwardCall<Real>& t, int row) {
    const int C = t.C;
    const size_t at = static_cast<size_t>(row) * C;
    const float mean = kLayer ? t.mean[row] : 0.0f, rstd = t.rstd[row];
    TeamSum sums(t.warps), products(t.warps);
    for (int c = 0; c < C; c += kLanes) {
        const Floats dout = load_first(t.dout + at + c, C - c), x = load_first(t.inp + at + c, C - c);
        const Floats normed = (kLayer ? x - mean : x) * rstd;
        store(dweight + c, load(dweight + c) + dout * normed);
        if (kLayer) store(dshift + c, load(dshift + c) + dout);
        const Floats dnorm = t.weight ? dout * load_first(t.weight + c, C - c) : dout;
        store(norm + c, normed);
        store(d + c, dnorm);
        if (kLayer) sums.at(c) += sum_of_eights(dnorm);
        products.at(c) += sum_of_eights(first_lanes(dnorm * normed, C - c));
    }
    const float scale = 1.0f / static_cast<float>(C);
    const float dnorm_mean = kLayer ? sums.sum(C) * scale : 0.0f, product_mean = products.sum(C) * scale;
    for (int c = 0; c < C; c += kLanes) {
        Floats v = (load(d + c) - dnorm_mean - load(norm + c) * product_mean) * rstd;
        if (t.dresidual) v += load_first(t.dresidual + at + c, C - c);
        store(d + c, v);
    }
}

// Calls each(first, rows) for the groups of `group` rows that a block of a backward kernel has, `blocks` groups apart.
template <class Each>
void for_each_group(int block, int blocks, int group, int N, const Each& each) {
    for (int first = block * group; first < N; first += blocks * group) each(first, std::min(group, N - first));
}

// Stores a block's part of the weight gradients.
template <bool kLayer>
void store_parts(float* parts, int block, const float* dweight, const float* dshift, int C) {
    if (!parts) return;
    float* const part = parts + static_cast<size_t>(block) * (kLayer ? 2 : 1) * C;
    std::memcpy(part, dweight, static_cast<size_t>(C) * sizeof(float));
    if (kLayer) std::memcpy(part + C, dshift, static_cast<size_t>(C) * sizeof(float));
}

// A few rows of floats, initially zeros.
struct Rows {
    std::vector<float> memory;
    size_t pitch;
    Rows(int rows, int C) : memory(static_cast<size_t>(rows) * padded(C) + 1), pitch(static_cast<size_t>(padded(C))) {}
    float* operator[](int row) { return memory.data() + static_cast<size_t>(row) * pitch; }
};

}  // namespace

template <bool kLayer, class Real>
void norm_forward(const Grid&, Real* normed, float* mean, float* rstd, const Real* inp, const Real* weight,
                  const Real* shift, float eps, int N, int C, int warps) {
    const ForwardCall<Real> call{inp, weight, shift, mean, rstd, eps, C, warps};
#pragma omp parallel if (static_cast <size_t>(N) * C > 16384)
    {
        Rows x(1, C);
#pragma omp for schedule(static)
        for (int row = 0; row < N; row++) {
            norm_row<kLayer>(x[0], call, row);
            for (int c = 0; c < C; c += kLanes)
                store_first(normed + static_cast<size_t>(row) * C + c, load(x[0] + c), C - c);
        }
    }
}

template <bool kLayer>
void norm_forward_fp8(const Grid&, e4m3* row, e4m3* transposed, Fp8State* state, float* mean, float* rstd,
                      const bf16* inp, const bf16* weight, const bf16* shift, float eps, int N, int C, int warps, int,
                      int, QuantizePass pass) {
    constexpr int kAtOnce = 32;
    const ForwardCall<bf16> call{inp, weight, shift, mean, rstd, eps, C, warps};
#pragma omp parallel if (N > kAtOnce)
    {
        Rows x(kAtOnce, C);
        Tally tally;
#pragma omp for schedule(static)
        for (int first = 0; first < N; first += kAtOnce) {
            const int rows = std::min(kAtOnce, N - first);
            for (int r = 0; r < rows; r++) {
                norm_row<kLayer>(x[r], call, first + r);
                if (kLayer) continue;
                for (int c = 0; c < C; c += kLanes) store(x[r] + c, rounded_to<bf16>(load(x[r] + c)));
            }
            const size_t at = static_cast<size_t>(first) * C, pitch = static_cast<size_t>(C);
            quantize_rows<e4m3>(
                {row ? row + at : nullptr, pitch, transposed ? transposed + first : nullptr, static_cast<size_t>(N)},
                tally, x[0], x.pitch, rows, C, state->scale, pass);
        }
        commit(state, tally, 0, pass);
    }
    commit(state, {}, static_cast<size_t>(N) * C, pass);
}

template <bool kLayer, int kGroup, class Real>
void norm_backward(const Grid& grid, Real* dinp, const Real* dresidual, float* parts, const Real* dout, const Real* inp,
                   const Real* weight, const float* mean, const float* rstd, int N, int C) {
    const int blocks = static_cast<int>(grid.grid.x);
    const BackwardCall<Real> call{
        dinp, dresidual, dout, inp, weight, mean, rstd, C, static_cast<int>(grid.block.x) / 32};
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int block = 0; block < blocks; block++) {
        Rows sums(2, C), x(2, C);
        for_each_group(block, blocks, kGroup, N, [&](int first, int rows) {
            for (int row = first; row < first + rows; row++) {
                norm_row_backward<kLayer>(x[0], x[1], sums[0], sums[1], call, row);
                for (int c = 0; c < C; c += kLanes)
                    store_first(dinp + static_cast<size_t>(row) * C + c, load(x[0] + c), C - c);
            }
        });
        store_parts<kLayer>(parts, block, sums[0], sums[1], C);
    }
}

template <bool kLayer>
void norm_backward_fp8(const Grid& grid, e5m2* row, e5m2* transposed, Fp8State* state, float* bias_parts, bf16* dinp,
                       const bf16* dresidual, float* parts, const bf16* dout, const bf16* inp, const bf16* weight,
                       const float* mean, const float* rstd, int N, int C, int tile_rows, int, QuantizePass pass) {
    const int blocks = static_cast<int>(grid.grid.x);
    const BackwardCall<bf16> call{
        dinp, dresidual, dout, inp, weight, mean, rstd, C, static_cast<int>(grid.block.x) / 32};
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int block = 0; block < blocks; block++) {
        Rows sums(3, C), norm(1, C), d(tile_rows, C);
        Tally tally;
        for_each_group(block, blocks, tile_rows, N, [&](int first, int rows) {
            for (int r = 0; r < rows; r++) {
                const size_t at = static_cast<size_t>(first + r) * C;
                norm_row_backward<kLayer>(d[r], norm[0], sums[0], sums[1], call, first + r);
                for (int c = 0; c < C; c += kLanes) {
                    const Floats v = rounded_to<bf16>(load(d[r] + c));
                    store_first(dinp + at + c, v, C - c);
                    store(d[r] + c, v);
                    store(sums[2] + c, load(sums[2] + c) + v);
                }
            }
            const size_t pitch = static_cast<size_t>(C);
            quantize_rows<e5m2>({row ? row + static_cast<size_t>(first) * pitch : nullptr, pitch,
                                 transposed ? transposed + first : nullptr, static_cast<size_t>(N)},
                                tally, d[0], d.pitch, rows, C, state->scale, pass);
        });
        commit(state, tally, block == 0 ? static_cast<size_t>(N) * C : 0, pass);
        store_parts<kLayer>(parts, block, sums[0], sums[1], C);
        if (kLayer && parts && bias_parts)
            std::memcpy(bias_parts + static_cast<size_t>(block) * C, sums[2], static_cast<size_t>(C) * sizeof(float));
    }
}

#define LLMC_INSTANTIATE_NORM(kLayer)                  \
    LLMC_INSTANTIATE(norm_forward<kLayer, float>);     \
    LLMC_INSTANTIATE(norm_forward<kLayer, bf16>);      \
    LLMC_INSTANTIATE(norm_forward_fp8<kLayer>);        \
    LLMC_INSTANTIATE(norm_backward<kLayer, 1, float>); \
    LLMC_INSTANTIATE(norm_backward<kLayer, 1, bf16>);  \
    LLMC_INSTANTIATE(norm_backward<kLayer, 4, float>); \
    LLMC_INSTANTIATE(norm_backward<kLayer, 4, bf16>);  \
    LLMC_INSTANTIATE(norm_backward_fp8<kLayer>);
LLMC_INSTANTIATE_NORM(true)
LLMC_INSTANTIATE_NORM(false)
#undef LLMC_INSTANTIATE_NORM

}  // namespace llmc::host
