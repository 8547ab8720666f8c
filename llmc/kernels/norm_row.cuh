// Layer norm and RMS norm on rows in registers. The plain kernels (norm.cu) and the quantizing ones (norm_fp8.cu) share
// this code, from the choice of a kernel to the arithmetic.
//
// A *team* is the threads that hold one group of rows: one warp, or for long rows all warps of the block. Thread t of
// the team holds columns 8t to 8t + 7 of every row, then 8 (t + threads) and so on: `Vectors` vectors of each of `Rows`
// rows. Several rows at once keep more loads in flight, and their sums share one exchange.
#pragma once
#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/registers.cuh"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/norm.h"

namespace llmc {

// Number of weight vectors that have gradients.
constexpr int gradients_of(NormKind kind) { return kind == NormKind::layer ? 2 : 1; }

constexpr int kTeamMaxWarps = 16;
constexpr int kTeamMaxSums = 8;
constexpr int kTeamExchange = 2 * kTeamMaxWarps * kTeamMaxSums;  // floats of shared memory

// Calls run<kind>(), the launch of a kernel for this kind of norm.
template <class Run>
void with_norm_kind(NormKind kind, const Run& run) {
    with_one_of<NormKind::layer, NormKind::rms>(kind, run);
}

// Calls run<kind, Rows, Vectors>(), the launch of a forward kernel for rows of C columns. Several short rows go to one
// warp, so that as many bytes are in flight as with long rows.
template <class Run>
void with_norm_shape(NormKind kind, int C, const Run& run) {
    with_norm_kind(kind, [&]<NormKind k>() {
        if (C <= 256)
            run.template operator()<k, 4, 1>();
        else if (C <= 512)
            run.template operator()<k, 4, 2>();
        else if (C <= 1024)
            run.template operator()<k, 2, 4>();
        else
            run.template operator()<k, 1, 8>();
    });
}

inline void check_width(const char* launcher, int C, int widest = 12288) {
    if (C > widest) throw Error(ExitCode::failure, "{}: C={}; the widest row it holds is {}", launcher, C, widest);
}

template <class Real>
void check_forward(const char* launcher, const NormParameters<Real>& norm, const float* mean, const float* rstd,
                   int C) {
    check_width(launcher, C);
    if ((mean != nullptr) != (rstd != nullptr && norm.kind() == NormKind::layer))
        throw Error(ExitCode::failure, "{}: mean and rstd go together", launcher);
}

template <class Real>
void check_gradients(const char* launcher, const NormParameters<Real>& norm, const NormGradients& gradients) {
    if ((norm.weight != nullptr) != (gradients.dweight != nullptr))
        throw Error(ExitCode::failure, "{}: weight and dweight go together", launcher);
}

struct RowTeam {
    int index;            // index of the team in the grid
    int thread, threads;  // this thread's number, and the number of threads, in the team
    int warps;
    float* exchange;  // kTeamExchange floats of shared memory, two halves used in turn; untouched if warps == 1
    int turn;

    LLMC_DEVICE int column(int vector) const { return (thread + vector * threads) * 8; }
};

LLMC_DEVICE RowTeam row_team(int warps, float* exchange) {
    if (warps > 1) {
        return {static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), warps * 32, warps, exchange, 0};
    }
    const int index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    return {index, static_cast<int>(threadIdx.x % 32), 32, 1, exchange, 0};
}

LLMC_DEVICE float sum8(const float (&x)[8]) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// Sums over the team, with the result in every thread. One barrier is enough: a half of `exchange` is written again two
// calls later, and by then every thread has passed the barrier of the call between.
template <int N>
LLMC_DEVICE void team_sum_each(float (&values)[N], RowTeam& team) {
    static_assert(N <= kTeamMaxSums, "exchange is too small");
    warp_sum_each(values);
    if (team.warps == 1) return;
    float* slots = team.exchange + team.turn * kTeamMaxWarps * kTeamMaxSums;
    team.turn ^= 1;
    if (team.thread % 32 == 0) {
        LLMC_UNROLL
        for (int i = 0; i < N; i++) slots[team.thread / 32 * N + i] = values[i];
    }
    __syncthreads();
    LLMC_UNROLL
    for (int i = 0; i < N; i++) values[i] = slots[i];
    for (int warp = 1; warp < team.warps; warp++) {
        LLMC_UNROLL
        for (int i = 0; i < N; i++) values[i] += slots[warp * N + i];
    }
}

// x = the team's rows of `from` (N, C). Columns past C read 0. Rows past N repeat the last one, so that every lane
// takes part in the sums; they must not be stored.
template <class Real, int Rows, int Vectors>
LLMC_DEVICE void load_rows(float (&x)[Rows][Vectors][8], const Real* from, int first_row, int N, int C,
                           const RowTeam& team) {
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        const size_t row = first_row + r < N ? first_row + r : N - 1;
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            const int c = team.column(v);
            if (c < C) {
                load8(from + row * C + c, x[r][v]);
            } else {
                for (int i = 0; i < 8; i++) x[r][v][i] = 0.0f;
            }
        }
    }
}

template <class Real, int Rows, int Vectors>
LLMC_DEVICE void store_rows(Real* to, const float (&x)[Rows][Vectors][8], int first_row, int N, int C,
                            const RowTeam& team) {
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            const int c = team.column(v);
            if (c < C && first_row + r < N) store8(to + static_cast<size_t>(first_row + r) * C + c, x[r][v]);
        }
    }
}

// x += y, element by element.
template <int Rows, int Vectors>
LLMC_DEVICE void add_rows(float (&x)[Rows][Vectors][8], const float (&y)[Rows][Vectors][8]) {
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++)
            for (int i = 0; i < 8; i++) x[r][v][i] += y[r][v][i];
    }
}

// Mean and 1 / sqrt(variance + eps) of each row, in two passes over the registers, because sum(x^2) - mean^2 would
// cancel. RMS norm's mean is 0. Every kernel that calls this gets the same bits.
template <NormKind norm, int Rows, int Vectors>
LLMC_DEVICE_SAME_BITS void row_statistics(const float (&x)[Rows][Vectors][8], float (&mean)[Rows], float (&rstd)[Rows],
                                          float eps, int C, RowTeam& team) {
    const float scale = 1.0f / static_cast<float>(C);
    if constexpr (norm == NormKind::layer) {
        LLMC_UNROLL
        for (int r = 0; r < Rows; r++) {
            float sums[8] = {};
            LLMC_UNROLL
            for (int v = 0; v < Vectors; v++)
                for (int i = 0; i < 8; i++) sums[i] += x[r][v][i];
            mean[r] = sum8(sums);
        }
        team_sum_each(mean, team);
    }
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        mean[r] = norm == NormKind::layer ? multiply_rounded(mean[r], scale) : 0.0f;
        float sums[8] = {};
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            // A factor instead of a branch: g++ 12 -O3 -march=znver3 if-converts the branch and then reads x[r][0] as
            // zeros.
            const float inside = norm == NormKind::rms || team.column(v) < C ? 1.0f : 0.0f;
            for (int i = 0; i < 8; i++) {
                const float distance = (x[r][v][i] - mean[r]) * inside;
                sums[i] += distance * distance;
            }
        }
        rstd[r] = sum8(sums);
    }
    team_sum_each(rstd, team);
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) rstd[r] = reciprocal_sqrt(rstd[r] * scale + eps);
}

// Writes the statistics of the team's rows for the backward. kWhole: no group of rows ends past N.
template <NormKind norm, bool kWhole, int Rows>
LLMC_DEVICE void store_statistics(float* mean, float* rstd, const float (&row_mean)[Rows],
                                  const float (&row_rstd)[Rows], int first_row, int N, const RowTeam& team) {
    if (rstd == nullptr || team.thread != 0) return;
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        if (!kWhole && first_row + r >= N) continue;
        if constexpr (norm == NormKind::layer) mean[first_row + r] = row_mean[r];
        rstd[first_row + r] = row_rstd[r];
    }
}

// Loads eight weights from column c on.
template <NormKind norm, class Real>
LLMC_DEVICE void load_weights(const Real* weight, int c, float (&w)[8]) {
    if constexpr (norm == NormKind::rms) {
        if (weight == nullptr) {
            for (int i = 0; i < 8; i++) w[i] = 1.0f;
            return;
        }
    }
    load8(weight + c, w);
}

// x = (x - mean) * rstd * weight + shift; for RMS norm x * rstd * weight.
template <NormKind norm, class Real, int Rows, int Vectors>
LLMC_DEVICE void normalise_rows(float (&x)[Rows][Vectors][8], const float (&mean)[Rows], const float (&rstd)[Rows],
                                const Real* weight, const Real* shift, int C, const RowTeam& team) {
    LLMC_UNROLL
    for (int v = 0; v < Vectors; v++) {
        const int c = team.column(v);
        if (c >= C) continue;
        float w[8], s[8];
        load_weights<norm>(weight, c, w);
        if constexpr (norm == NormKind::layer) load8(shift + c, s);
        LLMC_UNROLL
        for (int r = 0; r < Rows; r++) {
            for (int i = 0; i < 8; i++) {
                if constexpr (norm == NormKind::layer)
                    x[r][v][i] = (x[r][v][i] - mean[r]) * rstd[r] * w[i] + s[i];
                else
                    x[r][v][i] = x[r][v][i] * rstd[r] * w[i];
            }
        }
    }
}

// Gradient of rows through a norm. On entry `d` is dout and `x` the norm's input; on return `d` is the gradient of the
// input, without the residual's, and `x` the normed rows. The rows' terms are added to dweight and dshift, which are
// this thread's columns of the weight gradients; rows past N are left out.
//
//   norm = (x - mean) * rstd,   dnorm = dout * weight
//   dinp = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm))
//
// RMS norm: norm = x * rstd, without mean(dnorm), and dshift is not changed.
template <NormKind kind, class Real, int Rows, int Vectors>
LLMC_DEVICE void backward_rows(float (&d)[Rows][Vectors][8], float (&x)[Rows][Vectors][8], const Real* weight,
                               const float (&mean)[Rows], const float (&rstd)[Rows], float (&dweight)[Vectors][8],
                               float (&dshift)[Vectors][8], int valid_rows, int C, RowTeam& team) {
    float sums[2 * Rows] = {};  // sums of dnorm and of dnorm * norm
    LLMC_UNROLL
    for (int v = 0; v < Vectors; v++) {
        const int c = team.column(v);
        // Weights are read again for each group of rows, vector by vector. Long rows would spill if weights were held
        // over the caller's loop, or all loaded at the start as the compiler prefers. The compiler fence prevents that.
        if (v > 0) compiler_fence();
        float w[8] = {};
        if (c < C) load_weights<kind>(weight, c, w);
        LLMC_UNROLL
        for (int r = 0; r < Rows; r++) {
            float product[8];
            for (int i = 0; i < 8; i++) {
                const float dout = d[r][v][i], norm = (x[r][v][i] - mean[r]) * rstd[r];
                if (r < valid_rows) dweight[v][i] += dout * norm;
                if (kind == NormKind::layer && r < valid_rows) dshift[v][i] += dout;
                x[r][v][i] = norm;
                d[r][v][i] = dout * w[i];
                product[i] = d[r][v][i] * norm;
            }
            sums[2 * r] += sum8(d[r][v]);
            sums[2 * r + 1] += sum8(product);
        }
    }
    team_sum_each(sums, team);
    const float scale = 1.0f / static_cast<float>(C);
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        const float dnorm_mean = kind == NormKind::layer ? sums[2 * r] * scale : 0.0f;
        const float product_mean = sums[2 * r + 1] * scale;
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            for (int i = 0; i < 8; i++) {
                d[r][v][i] = (d[r][v][i] - dnorm_mean - x[r][v][i] * product_mean) * rstd[r];
            }
        }
    }
}

}  // namespace llmc
