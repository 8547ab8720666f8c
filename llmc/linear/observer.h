// The seam for instruments: observers are called around the casts and products of every linear layer in FP8. They
// change nothing that a layer computes. What they measure is kept by Fp8Laboratory.
//
//   Outliers    in steps that are recorded: measures the kurtosis of inputs and the alignment of gates
//   Probe       --fp8-probe-every: computes each product again in BF16, from the values before the cast, and adds up
//               the difference
#pragma once
#include <memory>
#include <vector>

#include "llmc/linear/operand.h"
#include "llmc/shard/arena.h"

namespace llmc {

template <class Real>
class Linear;
template <class Real>
class LinearLayers;

template <class Real>
class LinearObserver {
public:
    using Layer = Linear<Real>;
    virtual ~LinearObserver() = default;

    // Plans memory for a layer in FP8, when the layer plans its own.
    virtual void plan(const Layer&, Arena& /*activations*/) {}

    // True if producers must also write the values of this layer's input and of its output's gradient.
    virtual bool wants_values(const Layer&, const Pass&) const { return false; }
    // Returns memory for the values of an input (N, C) that would otherwise only exist in FP8, or nullptr if this
    // observer does not want them.
    virtual Real* input_values(const Layer&, const Pass&) { return nullptr; }

    // An input (N, C) that will be cast to FP8. Only called if the values exist: with block scales, and before
    // smoothing.
    virtual void before_cast(const Layer&, const Real* /*x*/, const Pass&) {}
    virtual void before_forward(const Layer&, const Operand<Real>& /*x*/, const Pass&) {}
    virtual void after_forward(const Layer&, const Real* /*out*/, const Operand<Real>& /*x*/, const Real* /*bias*/,
                               const Pass&) {}
    // dinp (N, C) and dweight (OC, C), the sum over micro-steps if pass.accumulate, are complete.
    virtual void after_backward(const Layer&, const Real* /*dinp*/, const float* /*dweight*/,
                                const Gradient<Real>& /*dout*/, const Operand<Real>& /*x*/, const Pass&) {}
};

// The observers that a model with this recipe needs, in the order in which they are called.
std::vector<std::unique_ptr<LinearObserver<bf16>>> make_observers(LinearLayers<bf16>& layers);

}  // namespace llmc
