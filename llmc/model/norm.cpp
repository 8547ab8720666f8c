// Chooses the kernels of a norm: layer norm or RMS norm, plain or with a cast to FP8.
#include "llmc/model/norm.h"

#include <algorithm>

#include "llmc/kernels/norm.h"

namespace llmc {

template <class Real>
Norm<Real>::Norm(ModelContext<Real>& context, const std::string& name, bool kept)
    : weights_(context.weights),
      gradients_(context.gradients),
      channels_(context.config.channels),
      eps_(static_cast<float>(context.config.norm_eps)),
      weight_(context.weights.table().look_up(name + ".weight")),
      bias_(context.weights.table().look_up(name + ".bias")) {
    const std::string kind = name.substr(name.rfind('.') + 1);
    if (bias_) context.plan(kept, (kind + " mean").c_str(), &mean_, context.N());
    context.plan(kept, (kind + " rstd").c_str(), &rstd_, context.N());
}

template <class Real>
size_t Norm<Real>::scratch(int N, int C) {
    return std::max({layernorm_backward_scratch(N, C), layernorm_backward_fp8_scratch(N, C),
                     rmsnorm_backward_scratch(N, C), rmsnorm_backward_fp8_scratch(N, C)});
}

template <class Real>
Operand<Real> Norm<Real>::forward(Linear<Real>& reader, Real* normed, Real* residual, const Real* inp1,
                                  const Real* inp2, const Pass& pass) {
    Real* const sum = inp2 ? residual : nullptr;
    return reader.input(
        normed, pass, [&](Real* out) { forward(out, residual, inp1, inp2, pass); },
        [&](const auto& codes, QuantizePass cast) {
            if (!bias_)
                return rmsnorm_forward_fp8(codes, rstd_, sum, inp1, inp2, value(weight_), pass.N(), channels_, eps_,
                                           cast, pass.stream);
            layernorm_forward_fp8(codes, mean_, rstd_, sum, inp1, inp2, value(weight_), value(bias_), pass.N(),
                                  channels_, cast, pass.stream);
        });
}

template <class Real>
void Norm<Real>::forward(Real* normed, Real* residual, const Real* inp1, const Real* inp2, const Pass& pass) {
    Real* const sum = inp2 ? residual : nullptr;
    if (bias_)
        layernorm_forward<Real>(normed, mean_, rstd_, sum, inp1, inp2, value(weight_), value(bias_), pass.N(),
                                channels_, pass.stream);
    else
        rmsnorm_forward<Real>(normed, rstd_, sum, inp1, inp2, value(weight_), pass.N(), channels_, eps_, pass.stream);
}

template <class Real>
Gradient<Real> Norm<Real>::backward(Real* dinp, const Real* dresidual, const Real* dout, const Real* inp,
                                    Linear<Real>* added, const Pass& pass) {
    const Real* const weight = value(weight_);
    float *const dweight = gradient(weight_), *const dbias = gradient(bias_);
    float* const scratch = weight ? pass.scratch : nullptr;  // for sums of gains and biases
    if (added && added->takes_gradient_from_norm())
        return added->gradient_from_norm(dinp, pass, [&](const auto& codes, float* bias_parts, QuantizePass cast) {
            if (!bias_)
                return rmsnorm_backward_fp8(codes, dinp, dresidual, dweight, scratch, dout, inp, weight, rstd_,
                                            pass.N(), channels_, pass.accumulate, cast, pass.stream);
            layernorm_backward_fp8(codes, bias_parts, dinp, dresidual, dweight, dbias, scratch, dout, inp, weight,
                                   mean_, rstd_, pass.N(), channels_, pass.accumulate, cast, pass.stream);
        });
    if (bias_)
        layernorm_backward<Real>(dinp, dresidual, dweight, dbias, scratch, dout, inp, weight, mean_, rstd_, pass.N(),
                                 channels_, pass.accumulate, pass.stream);
    else
        rmsnorm_backward<Real>(dinp, dresidual, dweight, scratch, dout, inp, weight, rstd_, pass.N(), channels_,
                               pass.accumulate, pass.stream);
    return {dinp};
}

template class Norm<float>;
template class Norm<bf16>;

}  // namespace llmc
