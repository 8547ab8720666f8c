// Layer norm and RMS norm that quantize their output (norm.h). norm_row.cuh has the arithmetic on rows, and
// quantize_values.cuh that on FP8 codes.
#include "llmc/kernels/norm.h"

#include <algorithm>

#include "llmc/device/async_copy.cuh"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/norm_row.cuh"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc {

// ---- forward -------------------------------------------------------------------------------------------------------

namespace {

constexpr int kBlockTeams = 4;  // at most, of more than one warp

// Bytes of the kernel's static arrays.
constexpr size_t kStaticBytes = kBlockTeams * kTeamExchange * sizeof(float) + kBlockWarps * 32 * sizeof(QuantizeTally);

// Split of (N, C) over blocks. A row has as many warps as in the plain layer norm, so that sums have the same bits. The
// number of rows per block changes no bit.
struct ForwardPlan {
    int warps_per_row, teams;
    int rows;  // per block
    int stride;

    ForwardPlan(int C, size_t shared_limit)
        : warps_per_row(div_up(C, 2048)),
          teams(std::max(1, kBlockWarps / warps_per_row)),
          rows(C <= 2048 ? 32 : 16),  // 32 rows fill the 32-byte sectors of the transposed output
          stride(code_stride(C)) {
        if (rows == 16 && all_shared_bytes() > shared_limit) rows = 8;  // C > 5760 on cards with 99 KB per block
    }
    int threads() const { return teams * warps_per_row * 32; }
    size_t shared_bytes() const { return static_cast<size_t>(rows) * stride * 4; }
    size_t all_shared_bytes() const { return kStaticBytes + shared_bytes(); }
};

}  // namespace

// Casts one group of normed rows, and writes the codes to the output in row order and to `tile`. RMS norm rounds to
// BF16 first, as the plain kernel and quantize() do.
template <NormKind norm, int Rows, int Vectors>
LLMC_DEVICE void quantize_normed_rows(e4m3* row_codes, uint32_t* tile, QuantizeTally& tally,
                                      const float (&x)[Rows][Vectors][8], float scale, int first_row, int local_row,
                                      int stride, int C, const RowTeam& team, QuantizePass pass) {
    LLMC_UNROLL
    for (int r = 0; r < Rows; r++) {
        LLMC_UNROLL
        for (int v = 0; v < Vectors; v++) {
            const int c = team.column(v);
            if (c >= C) continue;
            if (v > 0) compiler_fence();
            uint32_t codes[2];
            float values[8];
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

// store_code_columns() for a tile of eight rows.
LLMC_DEVICE void store_short_code_columns(e4m3* transposed, const uint32_t* tile, int first_row, int stride, int N,
                                          int C) {
    for (int word = static_cast<int>(threadIdx.x); word < C / 4; word += static_cast<int>(blockDim.x)) {
        uint32_t codes[2][4];
        for (int r = 0; r < 8; r++) codes[r / 4][r % 4] = tile[code_word(r, word, stride)];
        transpose_4x4(codes[0]);
        transpose_4x4(codes[1]);
        for (int c = 0; c < 4; c++) {
            e4m3* column = transposed + (static_cast<size_t>(word) * 4 + c) * N + first_row;
            *reinterpret_cast<uint2*>(column) = make_uint2(codes[0][c], codes[1][c]);
        }
    }
}

// A block owns block_rows rows. Its teams (norm_row.cuh) take groups of them in turn; then all threads write the
// transposed codes.
template <NormKind norm, int Rows, int Vectors>
static __global__ void __launch_bounds__(kBlockWarps * 32, 2)
    layernorm_forward_fp8_kernel(e4m3* row, e4m3* transposed, Fp8State* state, float* mean, float* rstd,
                                 const bf16* inp, const bf16* weight, const bf16* shift, float eps, int N, int C,
                                 int warps_per_row, int block_rows, int stride, QuantizePass pass) {
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

    // The last block may have 16 of 32 rows. Teams of several warps meet at barriers, and their blocks have 16 rows.
    for (int local = team_index * Rows; local < block_rows && block_row + local < N; local += teams * Rows) {
        const int first_row = block_row + local;
        float x[Rows][Vectors][8];
        load_rows(x, inp, first_row, N, C, team);
        float row_mean[Rows], row_rstd[Rows];
        row_statistics<norm>(x, row_mean, row_rstd, eps, C, team);
        store_statistics<norm, true>(mean, rstd, row_mean, row_rstd, first_row, N, team);
        // nvcc would keep the addresses of the loads in registers and spill. (RMS norm spills if they are forgotten.)
        if constexpr (norm == NormKind::layer) forget(team.thread);
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

static void check_shared_bytes(const char* launcher, const ForwardPlan& plan, int C) {
    if (plan.all_shared_bytes() <= shared_memory_per_block()) return;
    throw Error(
        ExitCode::failure,
        "{}: rows of C={} need {} bytes of shared memory, and this device gives a block {}; use --precision bf16",
        launcher, C, plan.all_shared_bytes(), shared_memory_per_block());
}

void norm_forward_fp8(const NormParameters<bf16>& norm, const Quantized<e4m3>& to, float* mean, float* rstd,
                      const bf16* inp, int N, int C, QuantizePass pass, stream_t stream) {
    check_quantize("norm_forward_fp8", to.state, N, C);
    check_forward("norm_forward_fp8", norm, mean, rstd, C);
    const ForwardPlan plan(C, shared_memory_per_block());
    check_shared_bytes("norm_forward_fp8", plan, C);
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    e4m3* row = writes_fp8(pass) ? to.row : nullptr;
    e4m3* transposed = writes_fp8(pass) ? to.transposed : nullptr;
    with_norm_shape(norm.kind(), C, [&]<NormKind kind, int Rows, int Vectors>() {
        host::launch_or_loop<layernorm_forward_fp8_kernel<kind, Rows, Vectors>,
                             host::norm_forward_fp8<kind == NormKind::layer>>(
            {dim3(div_up(N, plan.rows)), dim3(plan.threads()), plan.shared_bytes(), stream}, out(row, n),
            out(transposed, n), state_access(to.state, pass), out(mean, rows), out(rstd, rows), in(inp, n),
            in(norm.weight, columns), in(norm.shift, columns), norm.eps, N, C, plan.warps_per_row, plan.rows,
            plan.stride, pass);
    });
}

// ---- backward ------------------------------------------------------------------------------------------------------

namespace {

// Split of (N, C) over the backward's blocks: a function of the shape alone.
struct BackwardPlan {
    int warps;   // per block, which has whole rows: 8 columns per thread
    int rows;    // per tile
    int blocks;  // each takes every `blocks`-th tile

    BackwardPlan(int N, int C) : warps(div_up(C, 256)), rows(C <= 2048 ? 32 : 16) {
        blocks = std::min(div_up(N, rows), blocks_at_once(warps));
    }
    size_t parts(int C) const { return static_cast<size_t>(blocks) * C; }
};

}  // namespace

size_t norm_backward_fp8_scratch(NormKind kind, int N, int C) {
    return BackwardPlan(N, C).parts(C) * gradients_of(kind);
}
size_t norm_backward_fp8_bias_parts(int N, int C) { return BackwardPlan(N, C).parts(C); }

void finish_bias_gradient(float* dbias, const float* bias_parts, int N, int C, bool accumulate, stream_t stream) {
    reduce_column_parts(dbias, nullptr, bias_parts, BackwardPlan(N, C).blocks, C, C, accumulate, stream);
}

constexpr int kGroupRows = 4;                      // rows in registers at a time
constexpr int kGroupBytes = kGroupRows * 32 * 16;  // one warp's part of them

// A group of rows that is copied to shared memory while other work goes on. An H100 runs only 16 warps of this kernel
// per multiprocessor, and they have no registers for rows that are needed later. Without these copies every group would
// wait for memory. Each thread copies and reads its own columns, so there is nothing to synchronise.
//
// If kAhead is false, because a card has too little shared memory, get() reads global memory.
template <bool kAhead>
struct RowsAhead {
    bf16* slots;  // this thread's; one for each row, 512 bytes apart

    LLMC_DEVICE bf16* slot(int r) const { return slots + r * 256; }

    // Starts to copy rows of `from` (N, C). Columns past C become 0. If `from` is nullptr or ends before first_row, the
    // committed group of copies is empty.
    LLMC_DEVICE void start(const bf16* from, int first_row, int N, int C, const RowTeam& team) const {
        if (kAhead && from != nullptr && first_row < N) {
            const int c = team.column(0);
            const bf16* const source = from + static_cast<size_t>(first_row) * C + (c < C ? c : 0);
            LLMC_UNROLL
            for (int r = 0; r < kGroupRows; r++) cp_async16(slot(r), source + static_cast<size_t>(r) * C, c < C);
        }
        cp_async_commit();
    }
    // x = the rows. The arguments are those of start(), whose copies have arrived.
    LLMC_DEVICE void get(float (&x)[kGroupRows][1][8], const bf16* from, int first_row, int N, int C,
                         const RowTeam& team) const {
        if constexpr (kAhead) {
            LLMC_UNROLL
            for (int r = 0; r < kGroupRows; r++) load8(slot(r), x[r][0]);
        } else {
            load_rows(x, from, first_row, N, C, team);
        }
    }
};

// Read and write this thread's eight of the block's sums. They lie in two planes of four floats per thread, free of
// bank conflicts.
LLMC_DEVICE void load_sums(const float* block_sums, float (&sums)[8]) {
    load4(block_sums + threadIdx.x * 4, sums);
    load4(block_sums + (blockDim.x + threadIdx.x) * 4, sums + 4);
}
LLMC_DEVICE void store_sums(float* block_sums, const float (&sums)[8]) {
    store4(block_sums + threadIdx.x * 4, sums);
    store4(block_sums + (blockDim.x + threadIdx.x) * 4, sums + 4);
}

// Rounds x to BF16 and stores it. Conversions of pairs have four times the rate of single ones.
LLMC_DEVICE void store_rounded(bf16* to, float (&x)[8]) {
    Bytes16 packed;
    for (int i = 0; i < 4; i++) {
        packed.word[i] = pack_bf16x2(x[2 * i], x[2 * i + 1]);
        x[2 * i] = bf16x2_low(packed.word[i]);
        x[2 * i + 1] = bf16x2_high(packed.word[i]);
    }
    store16(to, packed);
}

// Finishes two rows: writes dinp, casts, and writes the codes to `row` and `tile`. The tally and the bias gradient's
// sums of this thread's eight columns are updated; the sums lie in shared memory because registers are short. RMS
// norm's linear layers have no bias.
template <NormKind norm>
LLMC_DEVICE void finish_rows(e5m2* row, uint32_t* tile, QuantizeTally& tally, float* bias_sums, bf16* dinp,
                             float (&d)[2][1][8], float scale, int first_row, int local_row, int stride, int C,
                             const RowTeam& team, QuantizePass pass) {
    const int c = team.column(0);
    if (c >= C) return;
    for (int r = 0; r < 2; r++) store_rounded(dinp + static_cast<size_t>(first_row + r) * C + c, d[r][0]);
    float sums[8];
    if constexpr (norm == NormKind::layer) load_sums(bias_sums, sums);
    LLMC_UNROLL
    for (int r = 0; r < 2; r++) {
        uint32_t codes[2];
        quantize_8<e5m2, true>(codes, tally, d[r][0], scale, pass);
        if (!writes_fp8(pass)) continue;
        if constexpr (norm == NormKind::layer)
            for (int i = 0; i < 8; i++) sums[i] += d[r][0][i];
        const uint2 pair = make_uint2(codes[0], codes[1]);
        *reinterpret_cast<uint2*>(tile + code_word(local_row + r, c / 4, stride)) = pair;
        if (row != nullptr) *reinterpret_cast<uint2*>(row + static_cast<size_t>(first_row + r) * C + c) = pair;
    }
    if constexpr (norm == NormKind::layer) store_sums(bias_sums, sums);
}

template <NormKind norm, bool kAhead>
static __global__ void __launch_bounds__(512)
    layernorm_backward_fp8_kernel(e5m2* row, e5m2* transposed, Fp8State* state, float* bias_parts, bf16* dinp,
                                  const bf16* dresidual, float* parts, const bf16* dout, const bf16* inp,
                                  const bf16* weight, const float* mean, const float* rstd, int N, int C, int tile_rows,
                                  int stride, QuantizePass pass) {
    LLMC_DYNAMIC_SHARED(uint32_t, tile);  // (tile_rows, stride), then what follows
    const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const bias_sums = reinterpret_cast<float*>(tile + tile_rows * stride);  // layer norm: 8 floats per thread
    float* const exchange = bias_sums + (norm == NormKind::layer ? warps * 32 * 8 : 0);
    float* const all_slots = exchange + (warps > 1 ? kTeamExchange : 0);  // kAhead: two groups of rows per warp
    bf16* const slots = reinterpret_cast<bf16*>(all_slots + warp * (2 * kGroupBytes / 4) + lane * 4);
    // The rows of `inp` and `dresidual` take turns in the first group's slots. So every copy has half a group's work to
    // arrive in, and an H100 has the shared memory for as many blocks as its registers allow.
    const RowsAhead<kAhead> inp_ahead{slots}, dout_ahead{inp_ahead.slot(kGroupRows)};

    RowTeam team = row_team(warps, exchange);
    const float scale = state->scale;
    QuantizeTally tally;
    float dweight[1][8] = {}, dshift[1][8] = {}, zeros[8] = {};
    if constexpr (norm == NormKind::layer) store_sums(bias_sums, zeros);

    // Lane l has the statistics of row l of the tile.
    float tile_mean, tile_rstd;
    const auto load_statistics = [&](int tile_row) {
        const int row = tile_row + lane < N ? tile_row + lane : N - 1;
        tile_mean = norm == NormKind::layer ? mean[row] : 0.0f;
        tile_rstd = rstd[row];
    };
    const int first_tile = static_cast<int>(blockIdx.x) * tile_rows;
    load_statistics(first_tile);
    inp_ahead.start(inp, first_tile, N, C, team);
    dout_ahead.start(dout, first_tile, N, C, team);

    for (int tile_row = first_tile; tile_row < N;) {
        const int next_tile = tile_row + static_cast<int>(gridDim.x) * tile_rows;
        for (int local = 0; local < tile_rows && tile_row + local < N; local += kGroupRows) {
            const int first_row = tile_row + local;
            const bool last = local + kGroupRows >= tile_rows || first_row + kGroupRows >= N;  // group of the tile
            const int next_row = last ? next_tile : first_row + kGroupRows;
            float x[kGroupRows][1][8], d[kGroupRows][1][8], row_mean[kGroupRows], row_rstd[kGroupRows];
            cp_async_wait<0>();
            inp_ahead.get(x, inp, first_row, N, C, team);
            dout_ahead.get(d, dout, first_row, N, C, team);
            inp_ahead.start(dresidual, first_row, N, C, team);
            dout_ahead.start(dout, next_row, N, C, team);
            LLMC_UNROLL
            for (int r = 0; r < kGroupRows; r++) {
                row_mean[r] = norm == NormKind::layer ? __shfl_sync(~0u, tile_mean, local + r) : 0.0f;
                row_rstd[r] = __shfl_sync(~0u, tile_rstd, local + r);
            }
            forget(team.thread);  // nvcc would keep the addresses of rows in registers and spill
            backward_rows<norm>(d, x, weight, row_mean, row_rstd, dweight, dshift, kGroupRows, C, team);
            if (last) load_statistics(next_tile);
            cp_async_wait<1>();
            if (dresidual != nullptr) {
                inp_ahead.get(x, dresidual, first_row, N, C, team);
                add_rows(d, x);
            }
            inp_ahead.start(inp, next_row, N, C, team);
            LLMC_UNROLL
            for (int r = 0; r < kGroupRows; r += 2) {
                float pair[2][1][8];
                for (int i = 0; i < 8; i++) {
                    pair[0][0][i] = d[r][0][i];
                    pair[1][0][i] = d[r + 1][0][i];
                }
                compiler_fence();  // otherwise the compiler takes all rows at once and spills
                finish_rows<norm>(row, tile, tally, bias_sums, dinp, pair, scale, first_row + r, local + r, stride, C,
                                  team, pass);
            }
        }
        if (transposed != nullptr) {
            __syncthreads();
            store_code_columns(transposed, tile, tile_row, tile_rows, stride, N, C);
            // All threads must have read these codes before the next tile's are written. With several warps, the
            // barrier in backward_rows() ensures that.
            if (team.warps == 1) __syncwarp();
        }
        tile_row = next_tile;
    }
    commit_tally(state, tally, blockIdx.x == 0 && threadIdx.x == 0 ? static_cast<size_t>(N) * C : 0, pass);

    // Writes the block's row of `parts`: C sums for dweight, then layer norm's C for dshift.
    const int c = team.column(0);
    if (c >= C || parts == nullptr) return;
    float* part = parts + static_cast<size_t>(blockIdx.x) * gradients_of(norm) * C + c;
    store8(part, dweight[0]);
    if constexpr (norm == NormKind::layer) {
        store8(part + C, dshift[0]);
        if (bias_parts == nullptr) return;
        float sums[8];
        load_sums(bias_sums, sums);
        store8(bias_parts + static_cast<size_t>(blockIdx.x) * C + c, sums);
    }
}

void norm_backward_fp8(const NormParameters<bf16>& norm, const NormGradients& gradients, const Quantized<e5m2>& to,
                       float* bias_parts, bf16* dinp, const bf16* dresidual, const bf16* dout, const bf16* inp,
                       const float* mean, const float* rstd, int N, int C, QuantizePass pass, stream_t stream) {
    check_quantize("norm_backward_fp8", to.state, N, C);
    check_width("norm_backward_fp8", C, kWidestFusedGradient);
    check_gradients("norm_backward_fp8", norm, gradients);
    if (!raises_amax(pass))
        throw Error(ExitCode::failure, "norm_backward_fp8: runs once, so pass must be train, train_counted or measure");
    const BackwardPlan plan(N, C);
    const bool writes = writes_fp8(pass), layer = norm.kind() == NormKind::layer;
    e5m2 *row = writes ? to.row : nullptr, *transposed = writes ? to.transposed : nullptr;
    if (!writes || !layer) bias_parts = nullptr;
    float* const parts = norm.weight != nullptr ? gradients.scratch : nullptr;
    const size_t n = static_cast<size_t>(N) * C, columns = C, rows = N;
    const int stride = code_stride(C), sums = gradients_of(norm.kind()) * C;
    const size_t bias_bytes = layer ? static_cast<size_t>(plan.warps) * 32 * 8 * sizeof(float) : 0;
    const size_t exchange_bytes = plan.warps > 1 ? kTeamExchange * sizeof(float) : 0;
    const size_t own_bytes = static_cast<size_t>(plan.rows) * stride * 4 + bias_bytes + exchange_bytes;
    const size_t ahead_bytes = static_cast<size_t>(plan.warps) * 2 * kGroupBytes;
    const bool ahead = own_bytes + ahead_bytes <= shared_memory_per_block();
    const auto run = [&]<NormKind kind, bool kAhead>() {
        const size_t shared_bytes = own_bytes + (kAhead ? ahead_bytes : 0);
        host::launch_or_loop<layernorm_backward_fp8_kernel<kind, kAhead>,
                             host::norm_backward_fp8<kind == NormKind::layer>>(
            {dim3(plan.blocks), dim3(32 * plan.warps), shared_bytes, stream}, out(row, n), out(transposed, n),
            state_access(to.state, pass), out(bias_parts, plan.parts(C)), out(dinp, n), in(dresidual, n),
            out(parts, plan.parts(sums)), in(dout, n), in(inp, n), in(norm.weight, columns), in(mean, rows),
            in(rstd, rows), N, C, plan.rows, stride, pass);
    };
    with_norm_kind(norm.kind(), [&]<NormKind kind>() {
        ahead ? run.template operator()<kind, true>() : run.template operator()<kind, false>();
    });
    if (parts != nullptr)
        reduce_column_parts(gradients.dweight, gradients.dshift, parts, plan.blocks, sums, C, gradients.accumulate,
                            stream);
}

}  // namespace llmc
