// Plain layer norm and RMS norm (norm.h). The arithmetic on rows is in norm_row.cuh.
#include "llmc/kernels/norm.h"

#include <algorithm>

#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/norm_row.cuh"

namespace llmc {

// ---- forward -------------------------------------------------------------------------------------------------------

// The kernel of both norms. RMS norm has neither mean nor shift.
template <NormKind norm, class Real, int Rows, int Vectors>
static __global__ void __launch_bounds__(256)
    layernorm_forward_kernel(Real* normed, float* mean, float* rstd, const Real* inp, const Real* weight,
                             const Real* shift, float eps, int N, int C, int warps_per_row) {
    LLMC_SHARED(float, exchange, [kTeamExchange]);
    RowTeam team = row_team(warps_per_row, exchange);
    const int first_row = team.index * Rows;
    if (first_row >= N) return;

    float x[Rows][Vectors][8];
    load_rows(x, inp, first_row, N, C, team);
    float row_mean[Rows], row_rstd[Rows];
    row_statistics<norm>(x, row_mean, row_rstd, eps, C, team);
    store_statistics<norm, false>(mean, rstd, row_mean, row_rstd, first_row, N, team);
    normalise_rows<norm>(x, row_mean, row_rstd, weight, shift, C, team);
    store_rows(normed, x, first_row, N, C, team);
}

template <class Real>
void norm_forward(const NormParameters<Real>& norm, Real* normed, float* mean, float* rstd, const Real* inp, int N,
                  int C, stream_t stream) {
    check_rows("norm_forward", N, C);
    check_forward("norm_forward", norm, mean, rstd, C);
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    with_norm_shape(norm.kind(), C, [&]<NormKind kind, int Rows, int Vectors>() {
        const int warps_per_row = div_up(C, Vectors * 256);
        const int teams = div_up(N, Rows), teams_per_block = warps_per_row == 1 ? 8 : 1;
        const int threads = warps_per_row == 1 ? 256 : 32 * warps_per_row;
        host::launch_or_loop<layernorm_forward_kernel<kind, Real, Rows, Vectors>,
                             host::norm_forward<kind == NormKind::layer, Real>>(
            {dim3(div_up(teams, teams_per_block)), dim3(threads), 0, stream}, out(normed, n), out(mean, rows),
            out(rstd, rows), in(inp, n), in(norm.weight, columns), in(norm.shift, columns), norm.eps, N, C,
            warps_per_row);
    });
}

// ---- backward ------------------------------------------------------------------------------------------------------

// One team per block. Rows are taken in groups, `gridDim.x` groups apart.
template <NormKind norm, class Real, int Rows, int Vectors>
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
            row_mean[r] = norm == NormKind::layer ? mean[row] : 0.0f;
            row_rstd[r] = rstd[row];
        }
        backward_rows<norm>(d, x, weight, row_mean, row_rstd, dweight, dshift, N - first_row, C, team);
        if (dresidual != nullptr) {
            load_rows(x, dresidual, first_row, N, C, team);
            add_rows(d, x);
        }
        store_rows(dinp, d, first_row, N, C, team);
    }

    // Writes the block's row of `parts`: C sums for dweight, then layer norm's C for dshift.
    if (parts == nullptr) return;
    float* part = parts + static_cast<size_t>(blockIdx.x) * gradients_of(norm) * C;
    LLMC_UNROLL
    for (int v = 0; v < Vectors; v++) {
        const int c = team.column(v);
        if (c >= C) continue;
        store8(part + c, dweight[v]);
        if constexpr (norm == NormKind::layer) store8(part + C + c, dshift[v]);
    }
}

namespace {
// Split of (N, C) over the backward's blocks: a function of the shape alone.
struct BackwardPlan {
    bool wide;  // a thread has 3 vectors of 1 row instead of 1 vector of 4 rows
    int warps;  // per block
    int blocks;

    BackwardPlan(int N, int C) {
        constexpr int kRowsPerBlock = 32;  // the fewest, because a block's sums cost as much memory traffic as 4 rows
        wide = C > 4096;
        warps = div_up(C, wide ? 768 : 256);
        blocks = std::min(div_up(N, kRowsPerBlock), blocks_at_once(warps));
    }
};
}  // namespace

size_t norm_backward_scratch(NormKind kind, int N, int C) {
    return static_cast<size_t>(BackwardPlan(N, C).blocks) * gradients_of(kind) * C;
}

template <class Real>
void norm_backward(const NormParameters<Real>& norm, const NormGradients& gradients, Real* dinp, const Real* dresidual,
                   const Real* dout, const Real* inp, const float* mean, const float* rstd, int N, int C,
                   stream_t stream) {
    check_rows("norm_backward", N, C);
    check_width("norm_backward", C);
    check_gradients("norm_backward", norm, gradients);
    const BackwardPlan plan(N, C);
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    const int sums = gradients_of(norm.kind()) * C;
    float* const parts = norm.weight != nullptr ? gradients.scratch : nullptr;
    const LaunchConfig config{dim3(plan.blocks), dim3(32 * plan.warps), 0, stream};
    with_norm_kind(norm.kind(), [&]<NormKind kind>() {
        const auto run = [&]<int Rows, int Vectors>() {
            host::launch_or_loop<layernorm_backward_kernel<kind, Real, Rows, Vectors>,
                                 host::norm_backward<kind == NormKind::layer, Rows, Real>>(
                config, out(dinp, n), in(dresidual, n), out(parts, static_cast<size_t>(plan.blocks) * sums),
                in(dout, n), in(inp, n), in(norm.weight, columns), in(mean, rows), in(rstd, rows), N, C);
        };
        plan.wide ? run.template operator()<1, 3>() : run.template operator()<4, 1>();
    });
    if (parts != nullptr)
        reduce_column_parts(gradients.dweight, gradients.dshift, parts, plan.blocks, sums, C, gradients.accumulate,
                            stream);
}

LLMC_INSTANTIATE_BOTH(norm_forward, float, bf16);
LLMC_INSTANTIATE_BOTH(norm_backward, float, bf16);

}  // namespace llmc
