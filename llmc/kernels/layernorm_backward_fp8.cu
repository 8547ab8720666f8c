// Quantizing layer norm and RMS norm backward: see layernorm_backward_fp8.h and rmsnorm_fp8.h; the arithmetic on rows
// is in layernorm_row.cuh.
#include "llmc/kernels/layernorm_backward_fp8.h"

#include <algorithm>

#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/layernorm_row.cuh"
#include "llmc/kernels/quantize_values.cuh"
#include "llmc/kernels/rmsnorm_fp8.h"

namespace llmc {

namespace {

// How (N, C) is cut: a function of the shape alone.
struct BackwardPlan {
    int warps;   // of a block, which has whole rows: 8 columns a thread
    int rows;    // of a tile
    int blocks;  // each takes every `blocks`-th tile

    BackwardPlan(int N, int C) : warps(div_up(C, 256)), rows(C <= 2048 ? 32 : 16) {
        blocks = std::min(div_up(N, rows), blocks_at_once(warps));
    }
    size_t parts() const { return static_cast<size_t>(blocks); }
};

}  // namespace

size_t layernorm_backward_fp8_scratch(int N, int C) { return BackwardPlan(N, C).parts() * 2 * C; }
size_t rmsnorm_backward_fp8_scratch(int N, int C) { return BackwardPlan(N, C).parts() * C; }
size_t layernorm_backward_fp8_bias_parts(int N, int C) { return BackwardPlan(N, C).parts() * C; }

void finish_bias_gradient(float* dbias, const float* bias_parts, int N, int C, bool accumulate, stream_t stream) {
    reduce_column_parts(dbias, nullptr, bias_parts, BackwardPlan(N, C).blocks, C, C, accumulate, stream);
}

constexpr int kGroupRows = 4;  // in registers at a time

// This thread's eight of the block's sums.
LLMC_DEVICE void load_sums(const float* block_sums, float (&sums)[8]) {
    load4(block_sums + threadIdx.x * 4, sums);
    load4(block_sums + (blockDim.x + threadIdx.x) * 4, sums + 4);
}
LLMC_DEVICE void store_sums(float* block_sums, const float (&sums)[8]) {
    store4(block_sums + threadIdx.x * 4, sums);
    store4(block_sums + (blockDim.x + threadIdx.x) * 4, sums + 4);
}

// Two rows from the layer norm's gradient to dinp, and on to `row`, to `tile`, to the tally and to the bias gradient's
// sums: this thread's eight columns, in shared memory because registers are short. They lie in two planes of four
// floats a thread, free of bank conflicts. RMS norm's linear layers have no bias.
template <NormKind norm, class F8>
LLMC_DEVICE void finish_rows(F8* row, uint32_t* tile, QuantizeTally& tally, float* bias_sums, bf16* dinp,
                             const bf16* dresidual, float (&d)[2][1][8], float scale, int first_row, int local_row,
                             int stride, int N, int C, const RowTeam& team, QuantizePass pass) {
    if (dresidual != nullptr) {
        float residual[2][1][8];
        load_rows(residual, dresidual, first_row, N, C, team);
        add_rows(d, residual);
    }
    round_rows<bf16>(d);
    store_rows(dinp, d, first_row, N, C, team);
    const int c = team.column(0);
    if (c >= C) return;
    float sums[8];
    if constexpr (norm == NormKind::layer) load_sums(bias_sums, sums);
    LLMC_UNROLL
    for (int r = 0; r < 2; r++) {
        uint32_t codes[2];
        quantize_8<F8, true>(codes, tally, d[r][0], scale, pass);
        if (!writes_fp8(pass)) continue;
        if constexpr (norm == NormKind::layer) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) sums[i] += d[r][0][i];
        }
        const uint2 pair = make_uint2(codes[0], codes[1]);
        *reinterpret_cast<uint2*>(tile + code_word(local_row + r, c / 4, stride)) = pair;
        if (row != nullptr) *reinterpret_cast<uint2*>(row + static_cast<size_t>(first_row + r) * C + c) = pair;
    }
    if constexpr (norm == NormKind::layer) store_sums(bias_sums, sums);
}

template <NormKind norm, class F8>
static __global__ void __launch_bounds__(512)
    layernorm_backward_fp8_kernel(F8* row, F8* transposed, Fp8State* state, float* bias_parts, bf16* dinp,
                                  const bf16* dresidual, float* parts, const bf16* dout, const bf16* inp,
                                  const bf16* weight, const float* mean, const float* rstd, int N, int C, int tile_rows,
                                  int stride, QuantizePass pass) {
    LLMC_DYNAMIC_SHARED(uint32_t, tile);  // (tile_rows, stride), then layer norm's 8 floats a thread
    LLMC_SHARED(float, exchange, [kTeamExchange]);
    RowTeam team = row_team(static_cast<int>(blockDim.x) / 32, exchange);
    const float scale = state->scale;
    QuantizeTally tally;
    float dweight[1][8] = {}, dshift[1][8] = {}, zeros[8] = {};
    float* const bias_sums = reinterpret_cast<float*>(tile + tile_rows * stride);
    if constexpr (norm == NormKind::layer) store_sums(bias_sums, zeros);

    for (int tile_row = static_cast<int>(blockIdx.x) * tile_rows; tile_row < N;
         tile_row += static_cast<int>(gridDim.x) * tile_rows) {
        for (int local = 0; local < tile_rows && tile_row + local < N; local += kGroupRows) {
            const int first_row = tile_row + local;
            float x[kGroupRows][1][8], d[kGroupRows][1][8], row_mean[kGroupRows], row_rstd[kGroupRows];
            load_rows(x, inp, first_row, N, C, team);
            load_rows(d, dout, first_row, N, C, team);
            LLMC_UNROLL
            for (int r = 0; r < kGroupRows; r++) {
                row_mean[r] = norm == NormKind::layer ? mean[first_row + r] : 0.0f;
                row_rstd[r] = rstd[first_row + r];
            }
            backward_rows<norm>(d, x, weight, row_mean, row_rstd, dweight, dshift, kGroupRows, C, team);
            LLMC_UNROLL
            for (int r = 0; r < kGroupRows; r += 2) {
                float pair[2][1][8];
                LLMC_UNROLL
                for (int i = 0; i < 8; i++) pair[0][0][i] = d[r][0][i], pair[1][0][i] = d[r + 1][0][i];
                in_turn([&] {  // the compiler would take all rows at once and spill
                    finish_rows<norm>(row, tile, tally, bias_sums, dinp, dresidual, pair, scale, first_row + r,
                                      local + r, stride, N, C, team, pass);
                });
            }
        }
        if (transposed == nullptr) continue;
        __syncthreads();
        store_code_columns(transposed, tile, tile_row, tile_rows, stride, N, C);
        // Nobody writes the next tile's codes before all have read these: with more warps than one, the barrier in
        // backward_rows() sees to that.
        if (team.warps == 1) __syncwarp();
    }
    commit_tally(state, tally, blockIdx.x == 0 && threadIdx.x == 0 ? static_cast<size_t>(N) * C : 0, pass);

    // The block's row of `parts`: C sums for dweight, then layer norm's C for dshift.
    const int c = team.column(0);
    if (c >= C || parts == nullptr) return;
    float* part = parts + static_cast<size_t>(blockIdx.x) * kGradientsOf<norm> * C + c;
    store8(part, dweight[0]);
    if constexpr (norm == NormKind::layer) {
        store8(part + C, dshift[0]);
        if (bias_parts == nullptr) return;
        float sums[8];
        load_sums(bias_sums, sums);
        store8(bias_parts + static_cast<size_t>(blockIdx.x) * C + c, sums);
    }
}

template <NormKind norm, class F8>
static void launch_norm_backward_fp8(const char* launcher, const Quantized<F8>& to, float* bias_parts, bf16* dinp,
                                     const bf16* dresidual, float* dweight, float* dshift, float* scratch,
                                     const bf16* dout, const bf16* inp, const bf16* weight, const float* mean,
                                     const float* rstd, int N, int C, bool accumulate, QuantizePass pass,
                                     stream_t stream) {
    check_quantize(launcher, to.state, N, C);
    if (C > kWidestFusedGradient) {
        throw Error(ExitCode::failure,
                    strprintf("%s: C=%d; the widest row it holds is %d", launcher, C, kWidestFusedGradient));
    }
    if (!raises_amax(pass)) {
        throw Error(ExitCode::failure,
                    strprintf("%s: runs once, so pass must be train, train_counted or measure", launcher));
    }
    const BackwardPlan plan(N, C);
    const bool writes = writes_fp8(pass);
    F8 *row = writes ? to.row : nullptr, *transposed = writes ? to.transposed : nullptr;
    if (!writes) bias_parts = nullptr;
    float* const parts = weight != nullptr ? scratch : nullptr;
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N, gradients = kGradientsOf<norm> * columns;
    const int stride = code_stride(C), sums = norm == NormKind::layer ? plan.warps * 32 * 32 : 0;
    const size_t shared_bytes = static_cast<size_t>(plan.rows) * stride * 4 + static_cast<size_t>(sums);
    host::launch_or_loop<layernorm_backward_fp8_kernel<norm, F8>, host::norm_backward_fp8<norm == NormKind::layer, F8>>(
        KernelVariant::host_norm,
        {dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(32 * plan.warps)), shared_bytes, stream},
        out(row, n), out(transposed, n), state_access(to.state, pass), out(bias_parts, plan.parts() * columns),
        out(dinp, n), in(dresidual, n), out(parts, plan.parts() * gradients), in(dout, n), in(inp, n),
        in(weight, columns), in(mean, rows), in(rstd, rows), N, C, plan.rows, stride, pass);
    if (parts != nullptr)
        reduce_column_parts(dweight, dshift, parts, plan.blocks, static_cast<int>(gradients), C, accumulate, stream);
}

template <class F8>
void layernorm_backward_fp8(const Quantized<F8>& to, float* bias_parts, bf16* dinp, const bf16* dresidual,
                            float* dweight, float* dshift, float* scratch, const bf16* dout, const bf16* inp,
                            const bf16* weight, const float* mean, const float* rstd, int N, int C, bool accumulate,
                            QuantizePass pass, stream_t stream) {
    launch_norm_backward_fp8<NormKind::layer>("layernorm_backward_fp8", to, bias_parts, dinp, dresidual, dweight,
                                              dshift, scratch, dout, inp, weight, mean, rstd, N, C, accumulate, pass,
                                              stream);
}

template <class F8>
void rmsnorm_backward_fp8(const Quantized<F8>& to, bf16* dinp, const bf16* dresidual, float* dweight, float* scratch,
                          const bf16* dout, const bf16* inp, const bf16* weight, const float* rstd, int N, int C,
                          bool accumulate, QuantizePass pass, stream_t stream) {
    if ((weight != nullptr) != (dweight != nullptr)) {
        throw Error(ExitCode::failure, "rmsnorm_backward_fp8: weight and dweight go together");
    }
    launch_norm_backward_fp8<NormKind::rms>("rmsnorm_backward_fp8", to, nullptr, dinp, dresidual, dweight, nullptr,
                                            scratch, dout, inp, weight, nullptr, rstd, N, C, accumulate, pass, stream);
}

#define LLMC_INSTANTIATE(F8)                                                                                          \
    template void layernorm_backward_fp8(const Quantized<F8>&, float*, bf16*, const bf16*, float*, float*, float*,    \
                                         const bf16*, const bf16*, const bf16*, const float*, const float*, int, int, \
                                         bool, QuantizePass, stream_t);                                               \
    template void rmsnorm_backward_fp8(const Quantized<F8>&, bf16*, const bf16*, float*, float*, const bf16*,         \
                                       const bf16*, const bf16*, const float*, int, int, bool, QuantizePass,          \
                                       stream_t);
LLMC_INSTANTIATE(e4m3)
LLMC_INSTANTIATE(e5m2)
#undef LLMC_INSTANTIATE

}  // namespace llmc
