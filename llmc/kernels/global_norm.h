// The sum of squares of gradients, in parts: every unit's gradients add their own parts to one array, and the optimizer
// (llmc/optim/prepare_step.h) adds the parts up.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"

namespace llmc {

// How many parts n gradients give: a function of n alone, so that the sum has the same bits on every GPU.
size_t global_norm_blocks(size_t n);

// partials[b] = sum of grad[i]^2 over block b's elements, for b < global_norm_blocks(n), in a fixed order: of every
// eight neighbours in FP32, and of those sums in FP64. So however gradients are cut into parts (at multiples of eight),
// their sums agree to about 1e-15. A non-finite gradient, or one whose square is beyond FP32 (1.8e19), makes its part
// non-finite. Any n; grad must be 16-byte aligned. 4 bytes read an element.
void global_norm_partials(double* partials, const float* grad, size_t n, stream_t stream);

}  // namespace llmc
