// Muon without its matrix products: momentum, the norm that a matrix is divided by, copies that transpose a matrix into
// the orientation in which it is multiplied and back, NorMuon's second moment, and the update of the weights.
#pragma once
#include <math.h>

#include <cstdint>

#include "llmc/kernels/update.h"

namespace llmc {

constexpr double kSmallestNorm = 1e-7;     // torch.optim.Muon's eps
constexpr float kSmallestSecond = 1e-10f;  // from NorMuon's published code

// The momentum grows linearly to `momentum` over the first `warmup` updates; with warmup 0 it is there from the first
// update on. Averages of few gradients then follow them sooner (Jordan's modded-nanogpt has 300 such updates, nanochat
// 400).
constexpr double kFirstMuonMomentum = 0.85;
struct MuonMomentum {
    double momentum = 0.95;
    int64_t warmup = 0;
};

// Momentum of the update after `applied` others (0 for the first). It has the same bits on the device and on the host.
LLMC_HD double momentum_at(const MuonMomentum& config, int64_t applied) {
    if (applied >= config.warmup) return config.momentum;
    const double part = static_cast<double>(applied) / static_cast<double>(config.warmup);
    return fma(part, config.momentum - kFirstMuonMomentum, kFirstMuonMomentum);
}

// Momentum of `count` parameters (Jordan et al., https://kellerjordan.github.io/posts/muon; an average, as in
// torch.optim.Muon). state->applied already counts this update:
//
//   g = grad * grad_scale
//   m = momentum * m + (1 - momentum) * g
//   u = (1 - momentum) * g + momentum * m with Nesterov momentum, else m             rounded to Real
//
// With state->skip set, m stays and u is not defined. 16-byte aligned; any count; element by element. Gradients are
// FP32 or BF16. Reads 8 bytes per element, 6 with BF16 gradients, and writes 4 + sizeof(Real).
template <class Real>
void muon_momentum(float* m, Real* u, const StateArray& grad, size_t count, const MuonMomentum& momentum, bool nesterov,
                   const StepState* state, stream_t stream);

// *inverse = 1 / max(factor * ||x||, kSmallestNorm), with the Frobenius norm of count elements. Squares are summed in
// FP64 in a fixed order. partials: muon_norm_blocks(count) doubles. If x is scaled by a power of two, *inverse is
// scaled by exactly its inverse.
size_t muon_norm_blocks(size_t count);
template <class Real>
void muon_inverse_norm(float* inverse, double* partials, const Real* x, size_t count, double factor, stream_t stream);

// out = inp (rows, columns), or its transpose (columns, rows). Before it is rounded, each element is multiplied by
// factors[0], or by the factor of its row or column in `inp`. Not in place. Moves 2 * sizeof(Real) bytes per element.
enum class FactorOf { none, matrix, row, column };
template <class Real>
void copy_matrix(Real* out, const Real* inp, int rows, int columns, bool transpose, const float* factors,
                 FactorOf factor_of, stream_t stream);

// NorMuon (arXiv 2510.05491). A line is a row of x (rows, columns) if by_rows, otherwise a column:
//
//   second     = beta2 * second + (1 - beta2) * mean of the line's squares           one per line
//   factors    = ||x|| / ||x / sqrt(second)|| / sqrt(second)
//
// With state->skip set, `second` stays. squares: one float per line, scratch. Sums are taken in a fixed order.
template <class Real>
void normuon_factors(float* factors, float* second, float* squares, const Real* x, int rows, int columns, bool by_rows,
                     double beta2, const StepState* state, stream_t stream);

struct MuonUpdate {
    double scale;  // factor of the direction o
    double weight_decay;
    bool cautious = false;
};

// master -= learning_rate * (weight_decay * master + scale * o). Decay does not depend on `scale`. All weights decay,
// or if `cautious` only the weights that o does not move away from 0 (o * master >= 0: cautious weight decay, arXiv
// 2510.12402). Everything else is as in update.h.
template <class Real>
void muon_update(const StateArray& master, Real* working, Fp8State* fp8, const Real* o, size_t count,
                 const MuonUpdate& update, const StepState* state, stream_t stream, const StateRounding& rounding = {});

}  // namespace llmc
