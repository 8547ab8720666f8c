// What Muon does beside matrix products: momentum, the norm that a matrix is divided by, its way into the orientation
// in which it is multiplied and back, NorMuon's second moment, and the update of the weights.
#pragma once
#include <math.h>

#include <cstdint>

#include "llmc/kernels/update.h"

namespace llmc {

// A momentum that grows in a line over the first `warmup` updates, to `momentum`; 0: there from the first on. Averages
// of few gradients then follow them sooner (Jordan's modded-nanogpt has 300 such updates, nanochat 400).
constexpr double kFirstMuonMomentum = 0.85;
struct MuonMomentum {
    double momentum = 0.95;
    int64_t warmup = 0;
};

// Of the update after `applied` others (0 for the first); the same bits on the device and on the host.
LLMC_HD double momentum_at(const MuonMomentum& config, int64_t applied) {
    if (applied >= config.warmup) return config.momentum;
    const double part = static_cast<double>(applied) / static_cast<double>(config.warmup);
    return fma(part, config.momentum - kFirstMuonMomentum, kFirstMuonMomentum);
}

// For `count` parameters (Jordan et al., https://kellerjordan.github.io/posts/muon; an average, as torch.optim.Muon),
// with the momentum of this update, which state->applied counts in:
//
//   g = grad * grad_scale
//   m = momentum * m + (1 - momentum) * g
//   u = (1 - momentum) * g + momentum * m with Nesterov's, else m                    rounded to Real
//
// With state->skip set m stays, and u is anything. 16-byte aligned; any count; element by element. Read 8 bytes an
// element, written 4 + sizeof(Real).
template <class Real>
void muon_momentum(float* m, Real* u, const float* grad, size_t count, const MuonMomentum& momentum, bool nesterov,
                   const StepState* state, stream_t stream);

// *inverse = 1 / max(factor * ||x||, 1e-7), the Frobenius norm of count elements: squares summed in FP64 in a fixed
// order. partials: muon_norm_blocks(count) doubles. x times a power of two gives exactly its inverse times *inverse.
size_t muon_norm_blocks(size_t count);
template <class Real>
void muon_inverse_norm(float* inverse, double* partials, const Real* x, size_t count, double factor, stream_t stream);

// out = inp (rows, columns), or with `transpose` its transpose (columns, rows), each element multiplied, before it is
// rounded, by factors[0], or by that of its row or column in `inp`. Not in place. 2 * sizeof(Real) bytes an element.
enum class FactorOf { none, matrix, row, column };
template <class Real>
void copy_matrix(Real* out, const Real* inp, int rows, int columns, bool transpose, const float* factors,
                 FactorOf factor_of, stream_t stream);

// NorMuon (arXiv 2510.05491). Of x (rows, columns) each row (by_rows), or each column, is a line:
//
//   second     = beta2 * second + (1 - beta2) * mean of the line's squares           one a line
//   factors    = ||x|| / ||x / sqrt(second)|| / sqrt(second)
//
// With state->skip set `second` stays. squares: one float a line, for use here alone. In a fixed order.
template <class Real>
void normuon_factors(float* factors, float* second, float* squares, const Real* x, int rows, int columns, bool by_rows,
                     double beta2, const StepState* state, stream_t stream);

struct MuonUpdate {
    double scale;  // of the direction
    double weight_decay;
    bool cautious = false;
};

// master -= learning_rate * (weight_decay * master + scale * o); decay does not know `scale`. All decay; if `cautious`
// only those do whose o takes them towards 0 as well, or nowhere (o * master >= 0: cautious weight decay, arXiv
// 2510.12402). Everything else as adamw_update() has it.
template <class Real>
void muon_update(float* master, Real* working, Fp8State* fp8, const Real* o, size_t count, const MuonUpdate& update,
                 const StepState* state, stream_t stream);

}  // namespace llmc
