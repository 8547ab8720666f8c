// The norm of gradients, and clipping by value or tensor by tensor, in place. Clipping by the norm of all gradients
// needs no kernel: it is a factor of the update (llmc/optim/prepare_step.h).
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// Gradients are 16-byte aligned, and n is any number of them.

// ---- norm ----------------------------------------------------------------------------------------------------------
//
// Sums of squares are taken in parts: the gradients of every unit add their parts to one array, which the optimizer
// adds up.

// Number of parts for n gradients: a function of n alone, so that the sum has the same bits on every GPU.
size_t global_norm_blocks(size_t n);

// partials[b] = sum of grad[i]^2 over block b's elements, b < global_norm_blocks(n), in a fixed order: every eight
// neighbours in FP32, and those sums in FP64. So for any cut of the gradients into parts, at multiples of eight, the
// sums agree to about 1e-15. A gradient that is not finite, or whose square is beyond FP32 (1.8e19), makes its part
// non-finite. Reads every gradient once. Gradients may be FP32 or BF16.
void global_norm_partials(double* partials, const StateArray& grad, size_t n, stream_t stream);

// *sum = sum of n partials, in a fixed order: each thread's own, then the threads' in a tree.
void add_partials(double* sum, const double* partials, size_t n, stream_t stream);

// ---- clipping ------------------------------------------------------------------------------------------------------

// Limits grad (n) to [-clip, clip] * *loss_scale, a power of two: PyTorch's clip_grad_value_ of the unscaled gradients.
// Moves 8 bytes per element.
void clip_values(float* grad, size_t n, double clip, const float* loss_scale, stream_t stream);

// Factors of n tensors, from the sums of squares of their stored gradients:
//
//   norm   = sqrt(square) / *loss_scale       in double, rounded to FP32, which hides the order of additions
//   factor = norm > clip ? clip / norm : 1    rounded to FP32
void clip_factors(float* factors, const double* squares, size_t n, double clip, const float* loss_scale,
                  stream_t stream);

// grad (n) *= *factor. Moves 8 bytes per element, none if the factor is 1.
void scale_gradient(float* grad, size_t n, const float* factor, stream_t stream);

}  // namespace llmc
