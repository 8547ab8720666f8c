// Softmax cross-entropy over the vocabulary, loss and gradient in one kernel, in place; and the sum of the losses.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// What is trained beside the cross-entropy.
struct TrainedLoss {
    float z_loss = 0.0f;           // adds z_loss * log(Z)^2, Z the sum of exp(logits) (PaLM, arXiv 2204.02311)
    float label_smoothing = 0.0f;  // spreads so much of the target over all V (arXiv 1512.00567)
};

// What comes between the head's product and the loss.
struct LogitShaping {
    float soft_cap = 0.0f;  // logits become cap * tanh(logits / cap) (Gemma 2, arXiv 2408.00118); 0: they stay
    TrainedLoss trained;
};
// losses[row] = -log softmax(logits[row])[targets[row]]
// and, with write_gradient, logits[row] = (softmax(logits[row]) - onehot(targets[row])) * dloss * *loss_scale
//
//   logits     (rows, padded_V) Real, float or bf16; padded_V % 8 == 0. Columns [V, padded_V) are never read and get
//              gradient 0
//   losses     (rows) float, in nats
//   targets    (rows) int in [0, V); -1: the row is ignored, loss 0 and gradient 0. Any other target, and any
//              NaN or infinite logit (of either sign) in a row that is not ignored, makes the row's loss and
//              gradient NaN: an overflow before the softmax must be seen
//   dloss      1 / number of targets, say; loss_scale one float on the device, or nullptr for 1
//
// `shaping`: with a cap the losses are those of the capped logits, and the gradient that of the logits before; z-loss
// and label smoothing are in the gradient and not in the losses, which stay comparable.
//
// One block a row: an online softmax reads it (one exponential an element, and one per 8 while the maximum still
// grows), a second pass reads it again from the L2 cache and writes the gradient. Moves 2 sizeof(Real) bytes an
// element (4V a row in bf16), sizeof(Real) without gradient. Rows run backwards: the last ones are what the product
// before left in the cache. Deterministic. After llm.c's fused classifier.
template <class Real>
void softmax_cross_entropy(Real* logits, float* losses, const int* targets, float dloss, const float* loss_scale,
                           int rows, int V, int padded_V, bool write_gradient, stream_t stream,
                           const LogitShaping& shaping = {});

// total = sum of losses, count = number of targets that are not -1; added to what is there when `accumulate`. One
// block, fixed order, in double. total and count are one value each; losses, targets (n); n may be 0.
void sum_losses(double* total, int* count, const float* losses, const int* targets, int n, bool accumulate,
                stream_t stream);

}  // namespace llmc
