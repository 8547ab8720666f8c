// Quantizing layer norm and RMS norm: see layernorm_fp8.h and rmsnorm_fp8.h; the arithmetic on rows is in
// layernorm_row.cuh.
#include "llmc/kernels/layernorm_fp8.h"

#include <algorithm>

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/layernorm_row.cuh"
#include "llmc/kernels/quantize_values.cuh"
#include "llmc/kernels/rmsnorm_fp8.h"

namespace llmc {

namespace {

constexpr int kBlockWarps = 8;  // at most
constexpr int kBlockTeams = 4;  // at most, of more than one warp

// The kernel's static arrays.
constexpr size_t kStaticBytes = kBlockTeams * kTeamExchange * sizeof(float) + kBlockWarps * 32 * sizeof(QuantizeTally);

// How (N, C) is cut. The number of warps of a row is the plain layer norm's, so that sums have its bits; the number of
// rows of a block changes no bit.
struct BlockPlan {
    int warps_per_row, teams;
    int rows;  // of a block
    int stride;

    BlockPlan(int C, size_t shared_limit)
        : warps_per_row(div_up(C, 2048)),
          teams(std::max(1, kBlockWarps / warps_per_row)),
          rows(C <= 2048 ? 32 : 16),  // 32 rows fill 32-byte sectors of the transposed output
          stride(code_stride(C)) {
        if (rows == 16 && all_shared_bytes() > shared_limit) rows = 8;  // C > 5760 where a block has 99 KB
    }
    int threads() const { return teams * warps_per_row * 32; }
    size_t shared_bytes() const { return static_cast<size_t>(rows) * stride * 4; }
    size_t all_shared_bytes() const { return kStaticBytes + shared_bytes(); }
};

}  // namespace

// x += the team's rows of `from`. Piece by piece: a whole long row in flight beside x would spill.
template <int Rows, int Vectors>
LLMC_DEVICE void add_stored_rows(float (&x)[Rows][Vectors][8], const bf16* from, int first_row, int C,
                                 const RowTeam& team) {
    LLMC_UNROLL
    for (int v = 0; v < Vectors; v++) {
        const int c = team.column(v);
        const auto add = [&] {
            LLMC_UNROLL
            for (int r = 0; r < Rows; r++) {
                float y[8] = {};
                if (c < C) load8(from + static_cast<size_t>(first_row + r) * C + c, y);
                LLMC_UNROLL
                for (int i = 0; i < 8; i++) x[r][v][i] += y[i];
            }
        };
        if (v > 0 && v % 2 == 0) compiler_fence();
        if constexpr (kLoadsTooEarly && Vectors == 8)
            piece_by_piece(add);
        else
            add();
    }
}

// One group of rows: read, added, normalised, cast; to the outputs in row order and to `tile`. RMS norm rounds to BF16
// first, as the plain kernel and quantize() do.
template <NormKind norm, int Rows, int Vectors>
LLMC_DEVICE void quantize_normed_rows(e4m3* row_codes, uint32_t* tile, QuantizeTally& tally,
                                      const float (&x)[Rows][Vectors][8], float scale, int first_row, int local_row,
                                      int stride, int C, const RowTeam& team, QuantizePass pass) {
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            int c = team.column(v);
            forget(c);
            if (c >= C) continue;
            if (v > 0) compiler_fence();
            uint32_t codes[2];
            float values[8];
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) values[i] = norm == NormKind::rms ? to_float(to_bf16(x[r][v][i])) : x[r][v][i];
            quantize_8<e4m3>(codes, tally, values, scale, pass);
            if (!writes_fp8(pass)) continue;
            const uint2 pair = make_uint2(codes[0], codes[1]);
            *reinterpret_cast<uint2*>(tile + code_word(local_row + r, c / 4, stride)) = pair;
            if (row_codes != nullptr) {
                *reinterpret_cast<uint2*>(row_codes + static_cast<size_t>(first_row + r) * C + c) = pair;
            }
        }
    }
}

// What store_code_columns() does, for a tile of eight rows.
LLMC_DEVICE void store_short_code_columns(e4m3* transposed, const uint32_t* tile, int first_row, int stride, int N,
                                          int C) {
    for (int word = static_cast<int>(threadIdx.x); word < C / 4; word += static_cast<int>(blockDim.x)) {
        uint32_t codes[2][4];
        LLMC_UNROLL
        for (int r = 0; r < 8; r++) codes[r / 4][r % 4] = tile[code_word(r, word, stride)];
        transpose_4x4(codes[0]);
        transpose_4x4(codes[1]);
        LLMC_UNROLL
        for (int c = 0; c < 4; c++) {
            e4m3* column = transposed + (static_cast<size_t>(word) * 4 + c) * N + first_row;
            *reinterpret_cast<uint2*>(column) = make_uint2(codes[0][c], codes[1][c]);
        }
    }
}

// A block owns block_rows rows: its teams (layernorm_row.cuh) take groups of them in turn, then all threads write the
// transposed codes.
template <NormKind norm, int Rows, int Vectors>
static __global__ void __launch_bounds__(kBlockWarps * 32, 2)
    layernorm_forward_fp8_kernel(e4m3* row, e4m3* transposed, Fp8State* state, float* mean, float* rstd, bf16* residual,
                                 const bf16* inp1, const bf16* inp2, const bf16* weight, const bf16* shift, float eps,
                                 int N, int C, int warps_per_row, int block_rows, int stride, QuantizePass pass) {
    LLMC_DYNAMIC_SHARED(uint32_t, tile);  // (block_rows, stride)
    LLMC_SHARED(float, exchange, [kBlockTeams * kTeamExchange]);
    LLMC_SHARED(QuantizeTally, tallies, [kBlockWarps * 32]);
    const int team_threads = warps_per_row * 32, teams = static_cast<int>(blockDim.x) / team_threads;
    const int team_index = static_cast<int>(threadIdx.x) / team_threads;
    RowTeam team{team_index,    static_cast<int>(threadIdx.x) % team_threads,        team_threads,
                 warps_per_row, exchange + team_index % kBlockTeams * kTeamExchange, 0};
    const int block_row = static_cast<int>(blockIdx.x) * block_rows;
    const float scale = state->scale;
    QuantizeTally tally;

    // The last block may have 16 of 32 rows. Teams of several warps, which meet at barriers, have blocks of 16.
    for (int local = team_index * Rows; local < block_rows && block_row + local < N; local += teams * Rows) {
        const int first_row = block_row + local;
        float x[Rows][Vectors][8];
        load_rows(x, inp1, first_row, N, C, team);
        if (inp2 != nullptr) {
            add_stored_rows(x, inp2, first_row, C, team);
            round_rows<bf16>(x);
            if (writes_fp8(pass)) store_rows(residual, x, first_row, N, C, team);
        }
        float row_mean[Rows], row_rstd[Rows];
        row_statistics<norm>(x, row_mean, row_rstd, eps, C, team);
        if (rstd != nullptr && team.thread == 0) {
            LLMC_UNROLL
            for (int r = 0; r < Rows; r++) {
                if constexpr (norm == NormKind::layer) mean[first_row + r] = row_mean[r];
                rstd[first_row + r] = row_rstd[r];
            }
        }
        // Where loads were, which is kept and would spill; RMS norm spills where it is forgotten.
        if constexpr (!kKeepsTooMuch && norm == NormKind::layer) forget_always(team.thread);
        normalise_rows<norm>(x, row_mean, row_rstd, weight, shift, C, team);
        quantize_normed_rows<norm>(row, tile, tally, x, scale, first_row, local, stride, C, team, pass);
    }
    tallies[threadIdx.x] = tally;
    __syncthreads();
    commit_tallies(state, tallies, static_cast<size_t>(N) * C, pass);

    if (transposed == nullptr) return;
    if (block_rows == 8)
        store_short_code_columns(transposed, tile, block_row, stride, N, C);
    else
        store_code_columns(transposed, tile, block_row, block_rows, stride, N, C);
}

static void check_shared_bytes(const char* launcher, const BlockPlan& plan, int C) {
    if (plan.all_shared_bytes() <= shared_memory_per_block()) return;
    throw Error(ExitCode::failure,
                strprintf("%s: rows of C=%d need %zu bytes of shared memory, and this device gives a "
                          "block %zu; use --precision bf16",
                          launcher, C, plan.all_shared_bytes(), shared_memory_per_block()));
}

template <NormKind norm>
static void launch_norm_forward_fp8(const char* launcher, const Quantized<e4m3>& to, float* mean, float* rstd,
                                    bf16* residual, const bf16* inp1, const bf16* inp2, const bf16* weight,
                                    const bf16* shift, float eps, int N, int C, QuantizePass pass, stream_t stream) {
    check_quantize(launcher, to.state, N, C);
    if (C > 12288) throw Error(ExitCode::failure, strprintf("%s: C=%d; the widest row it holds is 12288", launcher, C));
    if ((inp2 != nullptr) != (residual != nullptr)) {
        throw Error(ExitCode::failure, strprintf("%s: inp2 and residual go together", launcher));
    }
    const BlockPlan plan(C, shared_memory_per_block());
    check_shared_bytes(launcher, plan, C);
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    if (!writes_fp8(pass)) residual = nullptr;
    e4m3* row = writes_fp8(pass) ? to.row : nullptr;
    e4m3* transposed = writes_fp8(pass) ? to.transposed : nullptr;
    const auto run = [&]<int Rows, int Vectors>() {
        host::launch_or_loop<layernorm_forward_fp8_kernel<norm, Rows, Vectors>,
                             host::norm_forward_fp8<norm == NormKind::layer>>(
            KernelVariant::host_norm,
            {dim3(static_cast<unsigned>(div_up(N, plan.rows))), dim3(static_cast<unsigned>(plan.threads())),
             plan.shared_bytes(), stream},
            out(row, n), out(transposed, n), state_access(to.state, pass), out(mean, rows), out(rstd, rows),
            out(residual, n), in(inp1, n), in(inp2, n), in(weight, columns), in(shift, columns), eps, N, C,
            plan.warps_per_row, plan.rows, plan.stride, pass);
    };
    if (C <= 256)
        run.template operator()<4, 1>();
    else if (C <= 512)
        run.template operator()<4, 2>();
    else if (C <= 1024)
        run.template operator()<2, 4>();
    else
        run.template operator()<1, 8>();
}

void layernorm_forward_fp8(const Quantized<e4m3>& to, float* mean, float* rstd, bf16* residual, const bf16* inp1,
                           const bf16* inp2, const bf16* weight, const bf16* shift, int N, int C, QuantizePass pass,
                           stream_t stream) {
    if ((mean != nullptr) != (rstd != nullptr)) {
        throw Error(ExitCode::failure, "layernorm_forward_fp8: mean and rstd go together");
    }
    launch_norm_forward_fp8<NormKind::layer>("layernorm_forward_fp8", to, mean, rstd, residual, inp1, inp2, weight,
                                             shift, kLayerNormEpsilon, N, C, pass, stream);
}

void rmsnorm_forward_fp8(const Quantized<e4m3>& to, float* rstd, bf16* residual, const bf16* inp1, const bf16* inp2,
                         const bf16* weight, int N, int C, float eps, QuantizePass pass, stream_t stream) {
    launch_norm_forward_fp8<NormKind::rms>("rmsnorm_forward_fp8", to, nullptr, rstd, residual, inp1, inp2, weight,
                                           nullptr, eps, N, C, pass, stream);
}

}  // namespace llmc
