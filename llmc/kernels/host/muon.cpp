// Loops of Muon: momentum, norms, copies of matrices, and NorMuon's mean squares and factors. Its update is in
// update.cuh.
#include <cmath>

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {

template <class Real, class Gradient>
void muon_momentum(const Grid&, float* m_pointer, Real* u, const Gradient* grad, size_t count, MuonMomentum config,
                   bool nesterov, const StepState* state) {
    const float grad_scale = state->grad_scale;
    const double exact = momentum_at(config, state->applied > 0 ? state->applied - 1 : 0);
    const float momentum = static_cast<float>(exact), one_minus_momentum = static_cast<float>(1.0 - exact);
    const bool keeps = !state->skip;
#pragma omp parallel for schedule(static) if (count > 16384)
    for (size_t i = 0; i < count; i++) {
        const float gradient = one_minus_momentum * (to_float(grad[i]) * grad_scale);
        const float m = fmaf(momentum, m_pointer[i], gradient);
        if (keeps) m_pointer[i] = m;
        u[i] = to<Real>(nesterov ? fmaf(momentum, m, gradient) : m);
    }
}

template <class Real>
void muon_norm(const Grid& grid, double* partials, const Real* x, size_t count) {
    constexpr size_t kThreads = 256, kPerBlock = kThreads * 64;
    const size_t blocks = grid.grid.x;
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (size_t block = 0; block < blocks; block++) {
        double sums[kThreads] = {};
        const size_t end = std::min(count, (block + 1) * kPerBlock);
        for (size_t first = block * kPerBlock; first < end; first += kThreads)
            for (size_t i = 0; i < std::min(kThreads, end - first); i++) {
                const double value = static_cast<double>(to_float(x[first + i]));
                sums[i] += value * value;
            }
        partials[block] = tree_sum(sums);
    }
}

void muon_inverse_norm(const Grid&, float* inverse, const double* partials, size_t blocks, double factor) {
    double sums[256] = {};
    add_in_turn(sums, blocks, [=](size_t i) { return partials[i]; });
    const double norm = factor * sqrt(tree_sum(sums));
    *inverse = static_cast<float>(1.0 / (norm > kSmallestNorm ? norm : kSmallestNorm));
}

template <class Real>
void copy_matrix(const Grid&, Real* out, const Real* inp, int rows, int columns, bool transpose, const float* factors,
                 FactorOf factor_of) {
    constexpr int kTile = 32;
    const int across = (columns + kTile - 1) / kTile, tasks = (rows + kTile - 1) / kTile * across;
#pragma omp parallel for schedule(static) if (static_cast <size_t>(rows) * columns > 16384)
    for (int task = 0; task < tasks; task++) {
        const int first_row = task / across * kTile, first_column = task % across * kTile;
        for (int row = first_row; row < std::min(rows, first_row + kTile); row++)
            for (int column = first_column; column < std::min(columns, first_column + kTile); column++) {
                const size_t from = static_cast<size_t>(row) * columns + column;
                const float factor = factor_of == FactorOf::none ? 1.0f
                                                                 : factors[factor_of == FactorOf::row      ? row
                                                                           : factor_of == FactorOf::column ? column
                                                                                                           : 0];
                out[transpose ? static_cast<size_t>(column) * rows + row : from] =
                    to<Real>(to_float(inp[from]) * factor);
            }
    }
}

template <class Real>
void row_squares(const Grid&, float* squares, const Real* x, int rows, int columns) {
#pragma omp parallel for schedule(static) if (static_cast <size_t>(rows) * columns > 16384)
    for (int row = 0; row < rows; row++) {
        float lanes[32] = {};
        for (int first = 0; first < columns; first += 32)
            for (int i = 0; i < std::min(32, columns - first); i++) {
                const float value = to_float(x[static_cast<size_t>(row) * columns + first + i]);
                lanes[i] += value * value;
            }
        squares[row] = tree_sum(lanes) / static_cast<float>(columns);
    }
}

template <class Real>
void column_squares(const Grid& grid, float* squares, const Real* x, int rows, int columns) {
    constexpr int kWarps = 8;
    const int blocks = static_cast<int>(grid.grid.x);
#pragma omp parallel for schedule(static) if (static_cast <size_t>(rows) * columns > 16384)
    for (int block = 0; block < blocks; block++) {
        const int first = block * 32, n = std::min(32, columns - first);
        float sums[kWarps][32] = {};
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < n; i++) {
                const float value = to_float(x[static_cast<size_t>(r) * columns + first + i]);
                sums[r % kWarps][i] += value * value;
            }
        for (int i = 0; i < n; i++) {
            float total = 0;
            for (int w = 0; w < kWarps; w++) total += sums[w][i];
            squares[first + i] = total / static_cast<float>(rows);
        }
    }
}

void normuon_factors(const Grid&, float* factors, float* second, const float* squares, int lines, float beta2,
                     float one_minus_beta2, const StepState* state) {
    double before[256] = {}, after[256] = {};
    for (int i = 0; i < lines; i++) {
        const float average = beta2 * second[i] + one_minus_beta2 * squares[i];
        const float factor = 1.0f / sqrtf(average > kSmallestSecond ? average : kSmallestSecond);
        if (!state->skip) second[i] = average;
        factors[i] = factor;
        before[i % 256] += static_cast<double>(squares[i]);
        after[i % 256] += static_cast<double>(squares[i]) * factor * factor;
    }
    const double sum = tree_sum(after);
    const float ratio = sum > 0 ? static_cast<float>(sqrt(tree_sum(before) / sum)) : 0.0f;
    for (int i = 0; i < lines; i++) factors[i] *= ratio;
}

#define LLMC_INSTANTIATE_ALL(Real)                \
    LLMC_INSTANTIATE(muon_momentum<Real, float>); \
    LLMC_INSTANTIATE(muon_momentum<Real, bf16>);  \
    LLMC_INSTANTIATE(muon_norm<Real>);            \
    LLMC_INSTANTIATE(copy_matrix<Real>);          \
    LLMC_INSTANTIATE(row_squares<Real>);          \
    LLMC_INSTANTIATE(column_squares<Real>);
LLMC_INSTANTIATE_ALL(float)
LLMC_INSTANTIATE_ALL(bf16)
#undef LLMC_INSTANTIATE_ALL

}  // namespace llmc::host
