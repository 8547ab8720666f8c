// SGD with momentum on FP32 master weights.
#pragma once
#include "llmc/kernels/adamw.h"

namespace llmc {

struct SgdConfig {
    double momentum = 0.9;  // 0: none, and nothing is kept
    bool nesterov = false;
    double weight_decay = 0.1;
};

// One update of `count` parameters, as torch.optim.SGD defines it with dampening 0, but for weight decay, which is
// decoupled as in AdamW instead of being added to the gradient (and so to the momentum):
//
//   g       = grad * grad_scale
//   m       = momentum * m + g                          a sum, not an average; nullptr without momentum
//   d       = g + momentum * m with Nesterov's, else m; g without momentum
//   master -= learning_rate * (weight_decay * master + d)
//
// Everything else as adamw_update() has it. Read 12 bytes an element, written 8 and sizeof(Real) for the working copy;
// 4 less either way without momentum.
template <class Real>
void sgd_update(float* master, float* m, Real* working, Fp8State* fp8, const float* grad, size_t count,
                size_t decay_count, const SgdConfig& config, const StepState* state, stream_t stream);

}  // namespace llmc
