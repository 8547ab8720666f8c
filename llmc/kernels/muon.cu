// Kernels of Muon and NorMuon besides matrix products (muon.h).
#include "llmc/kernels/muon.h"

#include "llmc/device/warp.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/update.cuh"

namespace llmc {

constexpr int kTransposeTile = 32;

// ---- momentum ------------------------------------------------------------------------------------------------------

template <class Real, class Gradient>
static __global__ void __launch_bounds__(kBlockThreads)
    muon_momentum_kernel(float* m_pointer, Real* u_pointer, const Gradient* grad, size_t count, MuonMomentum config,
                         bool nesterov, const StepState* state) {
    const size_t first = static_cast<size_t>(blockIdx.x) * kBlockThreads * kPerThread + first_of_fours(threadIdx.x);
    if (first >= count) return;
    const size_t left = count - first;
    float m[8], g[8], u[8];
    load_group(m_pointer + first, left, m);
    load_group(grad + first, left, g);
    const float grad_scale = state->grad_scale;
    // A skipped step is not counted in `applied`, and its momentum is not used.
    const double exact = momentum_at(config, state->applied > 0 ? state->applied - 1 : 0);
    const float momentum = static_cast<float>(exact), one_minus_momentum = static_cast<float>(1.0 - exact);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        // fmaf() is spelled out because a compiler may fuse either product of the sum, and differently in each of the
        // eight places.
        const float gradient = one_minus_momentum * (g[i] * grad_scale);
        m[i] = fmaf(momentum, m[i], gradient);
        u[i] = nesterov ? fmaf(momentum, m[i], gradient) : m[i];
    }
    if (!state->skip) store_group(m_pointer + first, left, m);
    store_group(u_pointer + first, left, u);
}

template <class Real>
void muon_momentum(float* m, Real* u, const StateArray& grad, size_t count, const MuonMomentum& momentum, bool nesterov,
                   const StepState* state, stream_t stream) {
    if (count == 0) return;
    check_aligned("muon_momentum", {m, u, grad.values});
    const size_t blocks = div_up<size_t>(count, kBlockThreads * kPerThread);
    grad.typed([&]<class Gradient>(const Gradient* gradients) {
        host::launch_or_loop<muon_momentum_kernel<Real, Gradient>, host::muon_momentum<Real, Gradient>>(
            {dim3(blocks), kBlockThreads, 0, stream}, inout(m, count), out(u, count), in(gradients, count), count,
            momentum, nesterov, in(state, 1));
    });
}

// ---- norm ----------------------------------------------------------------------------------------------------------

constexpr size_t kNormPerBlock = kBlockThreads * 64;
size_t muon_norm_blocks(size_t count) { return div_up<size_t>(count, kNormPerBlock); }

template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    muon_norm_kernel(double* partials, const Real* x, size_t count) {
    LLMC_SHARED(double, sums, [kBlockThreads]);
    const size_t begin = static_cast<size_t>(blockIdx.x) * kNormPerBlock;
    double sum = 0;
    for (size_t i = begin + threadIdx.x; i < begin + kNormPerBlock && i < count; i += kBlockThreads) {
        const double value = static_cast<double>(to_float(x[i]));
        sum += value * value;
    }
    sum = block_sum(sums, threadIdx.x, sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(kBlockThreads)
    muon_inverse_norm_kernel(float* inverse, const double* partials, size_t blocks, double factor) {
    LLMC_SHARED(double, sums, [kBlockThreads]);
    double sum = 0;
    for (size_t i = threadIdx.x; i < blocks; i += kBlockThreads) sum += partials[i];
    sum = block_sum(sums, threadIdx.x, sum);
    if (threadIdx.x != 0) return;
    const double norm = factor * sqrt(sum);
    *inverse = static_cast<float>(1.0 / (norm > kSmallestNorm ? norm : kSmallestNorm));
}

template <class Real>
void muon_inverse_norm(float* inverse, double* partials, const Real* x, size_t count, double factor, stream_t stream) {
    const size_t blocks = muon_norm_blocks(count);
    host::launch_or_loop<muon_norm_kernel<Real>, host::muon_norm<Real>>({dim3(blocks), kBlockThreads, 0, stream},
                                                                        out(partials, blocks), in(x, count), count);
    host::launch_or_loop<muon_inverse_norm_kernel, host::muon_inverse_norm>(
        {1, kBlockThreads, 0, stream}, out(inverse, 1), in(partials, blocks), blocks, factor);
}

// ---- orientation ---------------------------------------------------------------------------------------------------

// A block takes a tile of 32 x 32 through shared memory, so that both sides are read and written along rows.
template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    copy_matrix_kernel(Real* out, const Real* inp, int rows, int columns, bool transpose, const float* factors,
                       FactorOf factor_of) {
    LLMC_SHARED(float, tile, [kTransposeTile][kTransposeTile + 1]);
    const int lane = static_cast<int>(threadIdx.x) % kTransposeTile,
              warp = static_cast<int>(threadIdx.x) / kTransposeTile;
    const int first_row = static_cast<int>(blockIdx.y) * kTransposeTile,
              first_column = static_cast<int>(blockIdx.x) * kTransposeTile;
    for (int r = warp; r < kTransposeTile; r += kBlockWarps) {
        const int row = first_row + r, column = first_column + lane;
        if (row >= rows || column >= columns) continue;
        float factor = 1.0f;
        if (factor_of != FactorOf::none)
            factor = factors[factor_of == FactorOf::row ? row : factor_of == FactorOf::column ? column : 0];
        tile[r][lane] = to_float(inp[static_cast<size_t>(row) * columns + column]) * factor;
    }
    __syncthreads();
    for (int r = warp; r < kTransposeTile; r += kBlockWarps) {
        const int row = transpose ? first_row + lane : first_row + r;
        const int column = transpose ? first_column + r : first_column + lane;
        if (row >= rows || column >= columns) continue;
        const size_t place =
            transpose ? static_cast<size_t>(column) * rows + row : static_cast<size_t>(row) * columns + column;
        out[place] = to<Real>(transpose ? tile[lane][r] : tile[r][lane]);
    }
}

template <class Real>
void copy_matrix(Real* out, const Real* inp, int rows, int columns, bool transpose, const float* factors,
                 FactorOf factor_of, stream_t stream) {
    const size_t count = static_cast<size_t>(rows) * columns;
    const int n_factors = factor_of == FactorOf::none     ? 0
                          : factor_of == FactorOf::matrix ? 1
                          : factor_of == FactorOf::row    ? rows
                                                          : columns;
    const dim3 grid(div_up(columns, kTransposeTile), div_up(rows, kTransposeTile));
    host::launch_or_loop<copy_matrix_kernel<Real>, host::copy_matrix<Real>>(
        {grid, kBlockThreads, 0, stream}, llmc::out(out, count), in(inp, count), rows, columns, transpose,
        in(n_factors > 0 ? factors : nullptr, n_factors), factor_of);
}

// ---- NorMuon -------------------------------------------------------------------------------------------------------

// Mean square of each row. One warp per row.
template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    row_squares_kernel(float* squares, const Real* x, int rows, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int row = static_cast<int>(blockIdx.x) * kBlockWarps + warp;
    if (row >= rows) return;
    float sum = 0;
    for (int c = lane; c < columns; c += 32) {
        const float value = to_float(x[static_cast<size_t>(row) * columns + c]);
        sum += value * value;
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[row] = sum / static_cast<float>(columns);
}

// Mean square of each column. A block has 32 columns, and every warp some of their rows.
template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    column_squares_kernel(float* squares, const Real* x, int rows, int columns) {
    LLMC_SHARED(float, sums, [kBlockWarps][32]);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int column = static_cast<int>(blockIdx.x) * 32 + lane;
    float sum = 0;
    for (int r = warp; r < rows && column < columns; r += kBlockWarps) {
        const float value = to_float(x[static_cast<size_t>(r) * columns + column]);
        sum += value * value;
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= columns) return;
    float total = 0;
    for (int w = 0; w < kBlockWarps; w++) total += sums[w][lane];
    squares[column] = total / static_cast<float>(rows);
}

template <class Real>
static void row_squares(float* squares, const Real* x, int rows, int columns, stream_t stream) {
    host::launch_or_loop<row_squares_kernel<Real>, host::row_squares<Real>>(
        {dim3(div_up(rows, kBlockWarps)), kBlockThreads, 0, stream}, out(squares, rows),
        in(x, static_cast<size_t>(rows) * columns), rows, columns);
}

// One block for all lines (rows or columns).
static __global__ void __launch_bounds__(kBlockThreads)
    normuon_factors_kernel(float* factors, float* second, const float* squares, int lines, float beta2,
                           float one_minus_beta2, const StepState* state) {
    LLMC_SHARED(double, sums, [kBlockThreads]);
    LLMC_SHARED(float, ratio, [1]);
    double before = 0, after = 0;
    for (int i = static_cast<int>(threadIdx.x); i < lines; i += kBlockThreads) {
        const float average = beta2 * second[i] + one_minus_beta2 * squares[i];
        const float factor = 1.0f / sqrtf(average > kSmallestSecond ? average : kSmallestSecond);
        if (!state->skip) second[i] = average;
        factors[i] = factor;
        before += static_cast<double>(squares[i]);
        after += static_cast<double>(squares[i]) * factor * factor;
    }
    before = block_sum(sums, threadIdx.x, before);
    __syncthreads();
    after = block_sum(sums, threadIdx.x, after);
    if (threadIdx.x == 0) ratio[0] = after > 0 ? static_cast<float>(sqrt(before / after)) : 0.0f;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < lines; i += kBlockThreads) factors[i] *= ratio[0];
}

template <class Real>
void normuon_factors(float* factors, float* second, float* squares, const Real* x, int rows, int columns, bool by_rows,
                     double beta2, const StepState* state, stream_t stream) {
    const size_t count = static_cast<size_t>(rows) * columns;
    const int lines = by_rows ? rows : columns;
    if (by_rows)
        row_squares(squares, x, rows, columns, stream);
    else
        host::launch_or_loop<column_squares_kernel<Real>, host::column_squares<Real>>(
            {dim3(div_up(columns, 32)), kBlockThreads, 0, stream}, out(squares, columns), in(x, count), rows, columns);
    host::launch_or_loop<normuon_factors_kernel, host::normuon_factors>(
        {1, kBlockThreads, 0, stream}, out(factors, lines), inout(second, lines), in(squares, lines), lines,
        static_cast<float>(beta2), static_cast<float>(1.0 - beta2), in(state, 1));
}

// ---- update --------------------------------------------------------------------------------------------------------

struct MuonRule {
    static constexpr int kMoments = 0;
    float scale, weight_decay;
    bool cautious;

    LLMC_DEVICE float step(const StepState& state) const { return static_cast<float>(state.learning_rate); }
    LLMC_DEVICE void operator()(float& p, float&, float&, float direction, bool, float learning_rate) const {
        // Compares signs, because the product of two small numbers would be 0.
        const bool against = (direction > 0 && p < 0) || (direction < 0 && p > 0);
        p = fmaf(-learning_rate, fmaf(cautious && against ? 0.0f : weight_decay, p, scale * direction), p);
    }
};

template <class Real>
void muon_update(const StateArray& master, Real* working, Fp8State* fp8, const Real* o, size_t count,
                 const MuonUpdate& update, const StepState* state, stream_t stream, const StateRounding& rounding) {
    const MuonRule rule{static_cast<float>(update.scale), static_cast<float>(update.weight_decay), update.cautious};
    const StateArray directions(const_cast<Real*>(o));  // only read
    run_update("muon_update", UpdateTensors<Real>{master, {}, {}, working, directions, rounding}, fp8, count, count,
               rule, state, stream);
}

LLMC_INSTANTIATE_BOTH(muon_momentum, float, bf16);
LLMC_INSTANTIATE_BOTH(muon_inverse_norm, float, bf16);
LLMC_INSTANTIATE_BOTH(copy_matrix, float, bf16);
LLMC_INSTANTIATE_BOTH(normuon_factors, float, bf16);
LLMC_INSTANTIATE_BOTH(muon_update, float, bf16);

}  // namespace llmc
