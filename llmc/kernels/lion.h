// Lion on FP32 master weights: one moment, and steps of one size, the sign of an average.
#pragma once
#include "llmc/kernels/adamw.h"

namespace llmc {

struct LionConfig {
    double beta1 = 0.9, beta2 = 0.99;
    double weight_decay = 0.1;
};

// One update of `count` parameters (Chen et al., arXiv 2302.06675, algorithm 2):
//
//   g       = grad * grad_scale
//   c       = beta1 * m + (1 - beta1) * g
//   master -= learning_rate * (weight_decay * master + sign(c))              sign(0) = 0
//   m       = beta2 * m + (1 - beta2) * g
//
// Everything else as adamw_update() has it: working copy, amax, decay_count, skipped steps, alignment, and slices that
// give the bits of the whole. Read 12 bytes an element, written 8 and sizeof(Real) for the working copy.
template <class Real>
void lion_update(float* master, float* m, Real* working, Fp8State* fp8, const float* grad, size_t count,
                 size_t decay_count, const LionConfig& config, const StepState* state, stream_t stream);

}  // namespace llmc
