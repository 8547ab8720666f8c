// Calls the products with GELU as parts of two linear layers. See gelu_products.h.
#include "llmc/linear/gelu_products.h"

#include "llmc/kernels/hopper/matmul_gelu.h"

namespace llmc {

template <class Real>
bool GeluProducts<Real>::fit_backward(const LayerPass& pass) const {
    const bool in_fp8 = first_.is_fp8();
    if (!kCanBeFp8<Real> || !allowed_ || !is_hopper() || in_fp8 != second_.is_fp8() || !first_.bias_) return false;
    if (in_fp8 && (!first_.layers_.fp8_->uses_history() || !first_.layers_.gradients_are_cast())) return false;
    const auto& shape = first_.shape();
    return hopper::can_multiply_with_gelu(pass.N, shape.C, shape.OC);
}

template <class Real>
Operand<Real> GeluProducts<Real>::forward(Real* h, void* row, const Operand<Real>& x, const LayerPass& pass) {
    Operand<Real> active;
    if constexpr (kCanBeFp8<Real>) {
        LinearLayers<Real>& layers = first_.layers_;
        const auto& shape = first_.shape();
        const Real* const bias = layers.weights_.weight(*first_.bias_);
        if (first_.forward_is_fp8()) first_.check_holds(layers.x_, "x");  // before the next operand takes the memory
        active = second_.input_target(pass);
        if (!first_.forward_is_fp8()) {
            layers.matmul_.count(operand_type<Real>);
            hopper::multiply_gelu_forward<bf16>({active.value}, h, {x.value}, {first_.weight()}, bias, pass.N, shape.C,
                                                shape.OC, QuantizePass::write, pass.tickets, pass.stream);
            return second_.input(active.value, nullptr, pass);
        }
        layers.matmul_.count(shape.type);
        if (active.codes.row) active.codes.row = static_cast<e4m3*>(row);
        const Quantized<e4m3> w = layers.codes_->rows(first_.number_);
        hopper::multiply_gelu_forward(active.codes, h, {x.codes.row, &x.codes.state->scale_inv},
                                      {w.row, &w.state->scale_inv}, bias, pass.N, shape.C, shape.OC, active.cast_pass,
                                      pass.tickets, pass.stream);
        second_.accept(active, pass);
    }
    return active;
}

template <class Real>
Gradient<Real> GeluProducts<Real>::backward(const Real* h, void* row, const Gradient<Real>& dout,
                                            const Operand<Real>& active, const LayerPass& pass) {
    Gradient<Real> dh;
    if constexpr (kCanBeFp8<Real>) {
        LinearLayers<Real>& layers = first_.layers_;
        const auto& shape = second_.shape();
        const BiasGradient bias{first_.dbias(), pass.scratch, pass.accumulate};
        layers.matmul_.count(shape.type);
        if (!second_.is_fp8()) {
            second_.wgrad(dout, active, pass);
            dh = {.value = static_cast<Real*>(row), .bias_done = true};
            hopper::multiply_gelu_backward<bf16>({dh.value}, bias, {dout.value}, {second_.weight()}, h, pass.N,
                                                 shape.OC, shape.C, QuantizePass::write, pass.tickets, pass.stream);
            return dh;
        }
        const auto codes = std::get<Quantized<e5m2>>(second_.codes_of(dout));
        second_.cast_and_wgrad(codes, dout, active, pass);
        dh = first_.gradient_target(pass);
        auto& to = std::get<Quantized<e5m2>>(dh.codes);
        to.row = static_cast<e5m2*>(row);
        const Quantized<e4m3> w = layers.codes_->both(second_.number_, pass.stream);
        hopper::multiply_gelu_backward<e5m2>(to, bias, {codes.row, &codes.state->scale_inv},
                                             {w.transposed, &w.state->scale_inv}, h, pass.N, shape.OC, shape.C,
                                             dh.cast_pass, pass.tickets, pass.stream);
        dh.bias_done = true;
        first_.accept(dh, pass);
    }
    return dh;
}

template class GeluProducts<float>;
template class GeluProducts<bf16>;

}  // namespace llmc
