#include "llmc/model/norm.h"

#include "llmc/kernels/layernorm.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/kernels/layernorm_fp8.h"

namespace llmc {

template <class Real>
Norm<Real>::Norm(ModelContext<Real>& context, const std::string& name, bool kept)
    : weights_(context.weights),
      gradients_(context.gradients),
      channels_(context.config.channels),
      weight_(context.weights.table().find(name + ".weight")),
      bias_(context.weights.table().find(name + ".bias")) {
    const std::string kind = name.substr(name.rfind('.') + 1);
    context.plan(kept, (kind + " mean").c_str(), &mean_, context.N());
    context.plan(kept, (kind + " rstd").c_str(), &rstd_, context.N());
}

template <class Real>
Operand<Real> Norm<Real>::forward(Linear<Real>& reader, Real* normed, Real* residual, const Real* inp1,
                                  const Real* inp2, const Pass& pass) {
    const Real *weight = weights_.weight(weight_), *bias = weights_.weight(bias_);
    Real* const sum = inp2 ? residual : nullptr;
    return reader.input(
        normed, pass, [&](Real* out) { forward(out, residual, inp1, inp2, pass); },
        [&](const auto& codes, QuantizePass cast) {
            layernorm_forward_fp8(codes, mean_, rstd_, sum, inp1, inp2, weight, bias, pass.N(), channels_, cast,
                                  pass.stream);
        });
}

template <class Real>
void Norm<Real>::forward(Real* normed, Real* residual, const Real* inp1, const Real* inp2, const Pass& pass) {
    layernorm_forward<Real>(normed, mean_, rstd_, inp2 ? residual : nullptr, inp1, inp2, weights_.weight(weight_),
                            weights_.weight(bias_), pass.N(), channels_, pass.stream);
}

template <class Real>
Gradient<Real> Norm<Real>::backward(Real* dinp, const Real* dresidual, const Real* dout, const Real* inp,
                                    Linear<Real>* added, const Pass& pass) {
    const Real* weight = weights_.weight(weight_);
    float *dweight = gradients_.gradient(weight_), *dbias = gradients_.gradient(bias_);
    if (added && added->takes_gradient_from_norm())
        return added->gradient_from_norm(dinp, pass, [&](const auto& codes, float* bias_parts, QuantizePass cast) {
            layernorm_backward_fp8(codes, bias_parts, dinp, dresidual, dweight, dbias, pass.scratch, dout, inp, weight,
                                   mean_, rstd_, pass.N(), channels_, pass.accumulate, cast, pass.stream);
        });
    layernorm_backward<Real>(dinp, dresidual, dweight, dbias, pass.scratch, dout, inp, weight, mean_, rstd_, pass.N(),
                             channels_, pass.accumulate, pass.stream);
    return {dinp};
}

template class Norm<float>;
template class Norm<bf16>;

}  // namespace llmc
