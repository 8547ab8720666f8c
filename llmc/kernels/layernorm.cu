// Layer norm kernels: see layernorm.h; the arithmetic on rows is in layernorm_row.cuh.
#include "llmc/kernels/layernorm.h"

#include <algorithm>

#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/layernorm_row.cuh"

namespace llmc {

static void check_layernorm(const char* launcher, int N, int C) {
    check_rows(launcher, N, C);
    if (C > 12288) throw Error(ExitCode::failure, strprintf("%s: C=%d; the widest row it holds is 12288", launcher, C));
}

// ---- forward -------------------------------------------------------------------------------------------------------

// x += the team's rows of `from`. Where registers are short, floats come piece by piece.
template <class Real, int Rows, int Vectors>
LLMC_DEVICE void add_stored_rows(float (&x)[Rows][Vectors][8], const Real* from, int first_row, int N, int C,
                                 const RowTeam& team) {
    if constexpr (sizeof(Real) == 2 || !kKeepsTooMuch) {
        float y[Rows][Vectors][8];
        load_rows(y, from, first_row, N, C, team);
        add_rows(x, y);
    } else {
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            const int c = team.column(v);
            piece_by_piece([&] {
                LLMC_UNROLL
                for (int r = 0; r < Rows; r++) {
                    float y[8] = {};
                    const size_t row = first_row + r < N ? first_row + r : N - 1;
                    if (c < C) load8(from + row * C + c, y);
                    LLMC_UNROLL
                    for (int i = 0; i < 8; i++) x[r][v][i] += y[i];
                }
            });
        }
    }
}

template <class Real, int Rows, int Vectors>
static __global__ void __launch_bounds__(256, kKeepsTooMuch ? 2 : 0)
    layernorm_forward_kernel(Real* normed, float* mean, float* rstd, Real* residual, const Real* inp1, const Real* inp2,
                             const Real* weight, const Real* shift, int N, int C, int warps_per_row) {
    LLMC_SHARED(float, exchange, [kTeamExchange]);
    RowTeam team = row_team(warps_per_row, exchange);
    const int first_row = team.index * Rows;
    if (first_row >= N) return;

    float x[Rows][Vectors][8];
    load_rows(x, inp1, first_row, N, C, team);
    if (inp2 != nullptr) {
        add_stored_rows(x, inp2, first_row, N, C, team);
        round_rows<Real>(x);
        store_rows(residual, x, first_row, N, C, team);
    }

    float row_mean[Rows], row_rstd[Rows];
    row_statistics(x, row_mean, row_rstd, C, team);
    if (mean != nullptr && team.thread == 0) {
        LLMC_UNROLL
        for (int r = 0; r < Rows; r++) {
            if (first_row + r < N) mean[first_row + r] = row_mean[r], rstd[first_row + r] = row_rstd[r];
        }
    }
    normalise_rows(x, row_mean, row_rstd, weight, shift, C, team);
    store_rows(normed, x, first_row, N, C, team);
}

template <class Real>
void layernorm_forward(Real* normed, float* mean, float* rstd, Real* residual, const Real* inp1, const Real* inp2,
                       const Real* weight, const Real* shift, int N, int C, stream_t stream) {
    check_layernorm("layernorm_forward", N, C);
    if ((inp2 != nullptr) != (residual != nullptr)) {
        throw Error(ExitCode::failure, "layernorm_forward: inp2 and residual go together");
    }
    if ((mean != nullptr) != (rstd != nullptr)) {
        throw Error(ExitCode::failure, "layernorm_forward: mean and rstd go together");
    }
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    auto run = [&]<int Rows, int Vectors>() {
        const int warps_per_row = div_up(C, Vectors * 256);
        const int teams = div_up(N, Rows), teams_per_block = warps_per_row == 1 ? 8 : 1;
        const int threads = warps_per_row == 1 ? 256 : 32 * warps_per_row;
        launch<layernorm_forward_kernel<Real, Rows, Vectors>>(
            {dim3(div_up(teams, teams_per_block)), dim3(threads), 0, stream}, out(normed, n), out(mean, rows),
            out(rstd, rows), out(residual, n), in(inp1, n), in(inp2, n), in(weight, columns), in(shift, columns), N, C,
            warps_per_row);
    };
    // Short rows come several to a warp: as many bytes in flight as long ones.
    if (C <= 256)
        run.template operator()<4, 1>();
    else if (C <= 512)
        run.template operator()<4, 2>();
    else if (C <= 1024)
        run.template operator()<2, 4>();
    else
        run.template operator()<1, 8>();
}

// ---- backward ------------------------------------------------------------------------------------------------------

// One team a block. Rows are taken in groups, `gridDim.x` groups apart.
template <class Real, int Rows, int Vectors>
static __global__ void __launch_bounds__(512)
    layernorm_backward_kernel(Real* dinp, const Real* dresidual, float* parts, const Real* dout, const Real* inp,
                              const Real* weight, const float* mean, const float* rstd, int N, int C) {
    LLMC_SHARED(float, exchange, [kTeamExchange]);
    RowTeam team = row_team(blockDim.x / 32, exchange);
    float dweight[Vectors][8] = {}, dshift[Vectors][8] = {};

    for (int first_row = blockIdx.x * Rows; first_row < N; first_row += gridDim.x * Rows) {
        float x[Rows][Vectors][8], d[Rows][Vectors][8], row_mean[Rows], row_rstd[Rows];
        load_rows(x, inp, first_row, N, C, team);
        load_rows(d, dout, first_row, N, C, team);
        LLMC_UNROLL
        for (int r = 0; r < Rows; r++) {
            const int row = first_row + r < N ? first_row + r : N - 1;
            row_mean[r] = mean[row];
            row_rstd[r] = rstd[row];
        }
        backward_rows(d, x, weight, row_mean, row_rstd, dweight, dshift, N - first_row, C, team);
        if (dresidual != nullptr) {
            load_rows(x, dresidual, first_row, N, C, team);
            add_rows(d, x);
        }
        store_rows(dinp, d, first_row, N, C, team);
    }

    // The block's row of `parts`: C sums for dweight, then C for dshift.
    float* part = parts + static_cast<size_t>(blockIdx.x) * 2 * C;
    LLMC_UNROLL
    for (int v = 0; v < Vectors; v++) {
        const int c = team.column(v);
        if (c < C) store8(part + c, dweight[v]), store8(part + C + c, dshift[v]);
    }
}

namespace {
// How the backward cuts (N, C): a function of the shape alone.
struct BackwardPlan {
    bool wide;  // 3 vectors of 1 row a thread instead of 1 vector of 4 rows
    int warps;  // of a block
    int blocks;

    BackwardPlan(int N, int C) {
        constexpr int kRowsPerBlock = 32;  // at least: a block's sums cost as much memory traffic as 4 rows
        wide = C > 4096;
        warps = div_up(C, wide ? 768 : 256);
        blocks = std::min(div_up(N, kRowsPerBlock), blocks_at_once(warps));
    }
};
}  // namespace

size_t layernorm_backward_scratch(int N, int C) { return static_cast<size_t>(BackwardPlan(N, C).blocks) * 2 * C; }

template <class Real>
void layernorm_backward(Real* dinp, const Real* dresidual, float* dweight, float* dshift, float* scratch,
                        const Real* dout, const Real* inp, const Real* weight, const float* mean, const float* rstd,
                        int N, int C, bool accumulate, stream_t stream) {
    check_layernorm("layernorm_backward", N, C);
    const BackwardPlan plan(N, C);
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    const LaunchConfig config{dim3(plan.blocks), dim3(32 * plan.warps), 0, stream};
    const auto run = [&]<auto kernel>() {
        launch<kernel>(config, out(dinp, n), in(dresidual, n), out(scratch, plan.blocks * 2 * columns), in(dout, n),
                       in(inp, n), in(weight, columns), in(mean, rows), in(rstd, rows), N, C);
    };
    if (plan.wide)
        run.template operator()<layernorm_backward_kernel<Real, 1, 3>>();
    else
        run.template operator()<layernorm_backward_kernel<Real, 4, 1>>();
    reduce_column_parts(dweight, dshift, scratch, plan.blocks, 2 * C, C, accumulate, stream);
}

#define LLMC_INSTANTIATE(Real)                                                                                        \
    template void layernorm_forward(Real*, float*, float*, Real*, const Real*, const Real*, const Real*, const Real*, \
                                    int, int, stream_t);                                                              \
    template void layernorm_backward(Real*, const Real*, float*, float*, float*, const Real*, const Real*,            \
                                     const Real*, const float*, const float*, int, int, bool, stream_t);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)
#undef LLMC_INSTANTIATE

}  // namespace llmc
