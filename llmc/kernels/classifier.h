// Softmax cross-entropy over the vocabulary, loss and gradient in one kernel, in place or as FP8 codes; and the sum of
// the losses.
#pragma once

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// The soft cap of the logits, and a further term of the training loss.
struct LogitShaping {
    float soft_cap = 0.0f;  // logits become cap * tanh(logits / cap) (Gemma 2, arXiv 2408.00118); 0: unchanged
    float z_loss = 0.0f;    // adds z_loss * log(Z)^2 with Z = sum of exp(logits) (PaLM, arXiv 2204.02311)
};

// losses[row] = -log softmax(logits[row])[targets[row]], and if write_gradient:
//
//   logits[row] = (softmax(logits[row]) - onehot(targets[row])) * dloss * *loss_scale
//
//   logits     (rows, padded_V) Real, float or bf16; padded_V % 8 == 0. Contents of columns [V, padded_V) do not
//              matter; their gradient is 0
//   losses     (rows) float, in nats
//   targets    (rows) int in [0, V); -1: the row is ignored, loss 0 and gradient 0. Any other target, and any NaN or
//              infinite logit (of either sign) in a row that is not ignored, makes the row's loss and gradient NaN, so
//              that an overflow before the softmax is seen
//   dloss      usually 1 / number of targets
//   loss_scale one float on the device, or nullptr for 1
//
// `shaping`: with a cap, losses are those of the capped logits, and the gradient is that of the logits before the cap.
// z-loss changes the gradient only, so losses stay comparable.
//
// One block per row. An online softmax reads the row, with one exponential per element and one more per 8 while the
// maximum still grows. A second pass reads the row again from the L2 cache and writes the gradient. Moves 2
// sizeof(Real) bytes per element (4V per row in bf16), sizeof(Real) without gradient. Rows run backwards, because the
// product before left the last ones in the cache. Deterministic. After llm.c's fused classifier.
template <class Real>
void softmax_cross_entropy(Real* logits, float* losses, const int* targets, float dloss, const float* loss_scale,
                           int rows, int V, int padded_V, bool write_gradient, stream_t stream,
                           const LogitShaping& shaping = {});

// The same with the gradient, rounded to BF16, as FP8 codes in both layouts (quantize.h). The logits stay, so a recipe
// may run it twice: first with pass `measure`, which writes the losses and no codes. rows and padded_V are multiples
// of 16. One kernel reads the logits and writes row codes (3 bytes per element), a second one transposes these codes
// (2). Measuring moves 2 bytes.
//
// Codes are rounded stochastically (as gradients in NVFP4 are, arXiv 2509.25149), except subnormals. Rounding to
// nearest is biased here: it makes -1 of a target's gradient p - 1 for all p below some 6 %, so that rows no longer sum
// to 0. The random bits follow from the gradients (classifier_random.cuh), so the same call gives the same codes.
// Statistics are those of the values before rounding.
template <class F8>
void softmax_cross_entropy_fp8(const Quantized<F8>& to, const bf16* logits, float* losses, const int* targets,
                               float dloss, const float* loss_scale, int rows, int V, int padded_V, QuantizePass pass,
                               stream_t stream, const LogitShaping& shaping = {});

// total = sum of losses, count = number of targets that are not -1; added to the old values if `accumulate`. One block,
// in a fixed order, in double. total and count are one value each; losses and targets are (n), and n may be 0.
void sum_losses(double* total, int* count, const float* losses, const int* targets, int n, bool accumulate,
                stream_t stream);

}  // namespace llmc
