// Clipping of gradients where they lie, by their values or tensor by tensor. (By the norm of all it takes no kernel: it
// is a factor of the update, see llmc/optim/prepare_step.h.)
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"

namespace llmc {

// grad (n) to [-clip, clip] * *loss_scale, which is a power of two: PyTorch's clip_grad_value_ of the unscaled ones.
// Any n; grad must be 16-byte aligned. 8 bytes an element.
void clip_values(float* grad, size_t n, double clip, const float* loss_scale, stream_t stream);

// *sum = the sum of n partials, in a fixed order: the threads' own, then theirs in a tree.
void add_partials(double* sum, const double* partials, size_t n, stream_t stream);

// For each of n tensors, from the sums of squares of their stored gradients:
//
//   norm   = sqrt(square) / *loss_scale       in double, rounded to FP32, where no order of adding shows
//   factor = norm > clip ? clip / norm : 1    rounded to FP32
void clip_factors(float* factors, const double* squares, size_t n, double clip, const float* loss_scale,
                  stream_t stream);

// grad (n) *= *factor. Any n; grad must be 16-byte aligned. 8 bytes an element, none where the factor is 1.
void scale_gradient(float* grad, size_t n, const float* factor, stream_t stream);

}  // namespace llmc
