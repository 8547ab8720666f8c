// A layer norm or an RMS norm with the residual addition before it, as part of a model. Its output is the input of a
// linear layer, which it leaves in FP8 where that layer is; its backward makes the gradient of the residual stream,
// which is also that of the output of the linear layer that was added there, and leaves in FP8 for it.
#pragma once
#include <optional>

#include "llmc/model/context.h"

namespace llmc {

template <class Real>
class Norm {
public:
    // Tensors name.weight and name.bias: a layer norm; name.weight alone, or neither: an RMS norm with or without
    // gains. `kept`: mean and rstd are kept until backward.
    Norm(ModelContext<Real>& context, const std::string& name, bool kept);
    static size_t scratch(int N, int C);  // floats that backward needs for partial sums

    // residual = inp1 + inp2, and its norm, (N, C) each. Without inp2, `residual` is not written and inp1 is normed.
    // `normed`: where the norm goes that `reader` does not want in FP8.
    Operand<Real> forward(Linear<Real>& reader, Real* normed, Real* residual, const Real* inp1, const Real* inp2,
                          const Pass& pass);
    // The same for whoever reads `normed` itself.
    void forward(Real* normed, Real* residual, const Real* inp1, const Real* inp2, const Pass& pass);
    // dinp = dresidual (nullptr: 0) + the gradient through the norm of `inp`, (N, C) each; dinp may be dresidual. The
    // result is for `added`, the layer whose output is part of inp (nullptr: none).
    Gradient<Real> backward(Real* dinp, const Real* dresidual, const Real* dout, const Real* inp, Linear<Real>* added,
                            const Pass& pass);

private:
    Weights<Real>& weights_;
    Gradients& gradients_;
    using Place = std::optional<ParameterTable::Place>;
    const Real* value(const Place& place) const { return place ? weights_.weight(*place) : nullptr; }
    float* gradient(const Place& place) { return place ? gradients_.gradient(*place) : nullptr; }

    const int channels_;
    const float eps_;  // of an RMS norm
    const Place weight_, bias_;
    float *mean_ = nullptr, *rstd_ = nullptr;  // (N)
};

}  // namespace llmc
