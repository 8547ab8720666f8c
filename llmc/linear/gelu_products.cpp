// Calls the products with GELU as parts of two linear layers. See gelu_products.h.
#include "llmc/linear/gelu_products.h"

#include "llmc/kernels/hopper/matmul_gelu.h"

namespace llmc {

template <class Real>
bool GeluProducts<Real>::fit_backward(const LayerPass& pass) const {
    if (!allowed_ || !is_hopper() || !first_.is_fp8() || !second_.is_fp8() || !first_.bias_ ||
        second_.input_goes_through_source())
        return false;
    const Fp8Registry& fp8 = *first_.layers_.fp8_;
    const auto& shape = first_.shape();
    return fp8.uses_history() && !fp8.has_block_scales() && hopper::can_multiply_with_gelu(pass.N, shape.C, shape.OC);
}

template <class Real>
bool GeluProducts<Real>::fit_forward(const LayerPass& pass) const {
    return fit_backward(pass) && first_.layers_.matmul_.fast_accumulation() != FastAccumulation::none;
}

template <class Real>
Operand<Real> GeluProducts<Real>::forward(Real* h, void* row, const Operand<Real>& x, const LayerPass& pass) {
    Operand<Real> active;
    if constexpr (kCanBeFp8<Real>) {
        LinearLayers<Real>& layers = first_.layers_;
        first_.check_holds(layers.x_, "x");
        active = second_.input_target(pass);
        if (active.codes.row) active.codes.row = static_cast<e4m3*>(row);
        const Quantized<e4m3> w = layers.codes_->rows(first_.number_);
        const auto& shape = first_.shape();
        hopper::multiply_gelu_forward(active.codes, h, {x.codes.row, &x.codes.state->scale_inv},
                                      {w.row, &w.state->scale_inv}, layers.weights_.weight(*first_.bias_), pass.N,
                                      shape.C, shape.OC, active.cast_pass, pass.tickets, pass.stream);
        second_.accept(active, pass);
        layers.matmul_.count_fp8();
    }
    return active;
}

template <class Real>
Gradient<Real> GeluProducts<Real>::backward(const Real* h, void* row, const Gradient<Real>& dout,
                                            const Operand<Real>& active, const LayerPass& pass) {
    Gradient<Real> dh;
    if constexpr (kCanBeFp8<Real>) {
        const auto multiply = [&]<class F8>(const Quantized<F8>& codes) {
            second_.cast_and_wgrad(codes, dout, active, pass);
            dh = first_.gradient_target(pass);
            auto& to = std::get<Quantized<F8>>(dh.codes);
            to.row = static_cast<F8*>(row);
            LinearLayers<Real>& layers = first_.layers_;
            const Quantized<e4m3> w = layers.codes_->both(second_.number_, pass.stream);
            const auto& shape = second_.shape();
            hopper::multiply_gelu_backward<F8>(to, {first_.dbias(), pass.scratch, pass.accumulate},
                                               {codes.row, &codes.state->scale_inv},
                                               {w.transposed, &w.state->scale_inv}, h, pass.N, shape.OC, shape.C,
                                               dh.cast_pass, pass.tickets, pass.stream);
            dh.bias_done = true;
            first_.accept(dh, pass);
            layers.matmul_.count_fp8();
        };
        std::visit(multiply, second_.codes_of(dout));
    }
    return dh;
}

template class GeluProducts<float>;
template class GeluProducts<bf16>;

}  // namespace llmc
