// A layer norm or an RMS norm together with the residual addition before it. Its output is the input of a linear layer,
// and is cast to FP8 if that layer is in FP8. Its backward computes the gradient of the residual stream. That is also
// the gradient of the linear layer whose output was added to the stream, and is cast for it.
#pragma once
#include <optional>

#include "llmc/kernels/norm.h"
#include "llmc/model/block.h"

namespace llmc {

template <class Real>
class Norm {
public:
    // A layer norm if the tensors name.weight and name.bias exist. Otherwise an RMS norm, with gains if name.weight
    // exists. `kept`: mean and rstd are kept until backward.
    Norm(ModelContext<Real>& context, const std::string& name, bool kept);
    static size_t scratch(int N, int C);  // floats that backward needs for partial sums

    // Computes residual = inp1 + inp2 and its norm, (N, C) each. If inp2 is nullptr, norms inp1 and does not write
    // `residual`. `normed` receives the norm unless `reader`, the layer that reads it, is in FP8.
    Operand<Real> forward(Linear<Real>& reader, Real* normed, Real* residual, const Real* inp1, const Real* inp2,
                          const Pass& pass);
    // The same if no linear layer reads the norm.
    void forward(Real* normed, Real* residual, const Real* inp1, const Real* inp2, const Pass& pass);
    // dinp = dresidual + the gradient through the norm of `inp`, (N, C) each. dresidual may be nullptr, for 0, or dinp
    // itself. `added` is the linear layer whose output was added to give inp, or nullptr. The result is also the
    // gradient of its output.
    Gradient<Real> backward(Real* dinp, const Real* dresidual, const Real* dout, const Real* inp, Linear<Real>* added,
                            const Pass& pass);

private:
    Weights<Real>& weights_;
    Gradients& gradients_;
    using Place = std::optional<ParameterTable::Place>;
    const Real* value(const Place& place) const { return place ? weights_.weight(*place) : nullptr; }
    float* gradient(const Place& place) { return place ? gradients_.gradient(*place) : nullptr; }

    NormParameters<Real> parameters() const;

    const int channels_;
    const float eps_;  // used by RMS norm only
    const Place weight_, bias_;
    float *mean_ = nullptr, *rstd_ = nullptr;  // (N)
};

}  // namespace llmc
