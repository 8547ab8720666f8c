// Two linear layers with GELU between them, on Hopper: the first layer's forward and the second's dgrad also compute
// GELU or its gradient, and in FP8 cast the result (kernels/hopper/matmul_gelu.h).
//
//   h (N, F) = first(x),   second's input = GELU(h)
#pragma once
#include "llmc/linear/linear.h"

namespace llmc {

template <class Real>
class GeluProducts {
public:
    GeluProducts(Linear<Real>& first, Linear<Real>& second, bool allowed)
        : first_(first), second_(second), allowed_(allowed) {}

    // True if this pass uses them: they are allowed, the card is Hopper's, the shapes fit, and both layers are in BF16
    // or in FP8 with a recipe that runs producers once. FP8 accumulates fast forward, which must be allowed, too.
    bool fit_backward(const LayerPass& pass) const;
    bool fit_forward(const LayerPass& pass) const {
        return fit_backward(pass) &&
               (!first_.forward_is_fp8() || first_.layers_.matmul_.fast_accumulation() != FastAccumulation::none);
    }
    // first.forward() to h, and the input of `second`. FP8's row codes go to `row` (N, F bytes), because x occupies the
    // memory of the second layer's.
    Operand<Real> forward(Real* h, void* row, const Operand<Real>& x, const LayerPass& pass);
    // second.backward(), but with the gradient of h instead of dinp. It goes to `row` (N, F) in BF16, and so do the row
    // codes in FP8, because dout occupies the memory of the first layer's.
    Gradient<Real> backward(const Real* h, void* row, const Gradient<Real>& dout, const Operand<Real>& active,
                            const LayerPass& pass);

private:
    Linear<Real>&first_, &second_;
    const bool allowed_;
};

}  // namespace llmc
