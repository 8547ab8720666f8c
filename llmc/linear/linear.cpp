#include "llmc/linear/linear.h"

#include <algorithm>

#include "llmc/device/trace.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/kernels/outliers.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/kernels/smooth.h"

namespace llmc {
namespace {

e4m3* codes_at(uint8_t* memory) { return reinterpret_cast<e4m3*>(memory); }

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------------

template <class Real>
Linear<Real>::Linear(LinearLayers<Real>& layers, const std::string& name, int rows, const LinearSetup& setup,
                     const std::string& weight)
    : layers_(layers), name_(name), rows_(rows), setup_(setup) {
    const ParameterTable& table = layers.weights_.table();
    weight_ = table.find(weight.empty() ? name + ".weight" : weight);
    bias_ = table.look_up(name + ".bias");
    const std::vector<int>& shape = table.tensor(weight_).shape;
    outputs_ = shape.at(0);
    inputs_ = shape.at(1);
    layers.layers_.push_back(this);
    is_fp8_ = layers.fp8_ && table.tensor(weight_).codes != CodesFrom::nothing;
    if (!is_fp8_) return;
    tensors_ = layers.fp8_->add(name);
    if (setup.smooth) layers.fp8_->smooth(tensors_, inputs_);
    layers.weight_codes_->add(weight_, setup.kind);
    plan_codes();
    if (layers.block_scales()) plan_scales();
    if (layers.fp8_->config().probe) plan_probe();
    if (takes_gradient_from_norm())
        layers.activations_.plan_shared("bias parts", &layers.bias_parts_,
                                        layernorm_backward_fp8_bias_parts(rows, outputs_));
}

template <class Real>
void Linear<Real>::plan_codes() {
    const size_t N = static_cast<size_t>(rows_), C = static_cast<size_t>(inputs_), OC = static_cast<size_t>(outputs_);
    Arena& activations = layers_.activations_;
    if (input_goes_through_source()) activations.plan_shared("source", &layers_.source_, N * C);
    activations.plan_shared("x", &layers_.x_.row, N * C);
    activations.plan_shared("dout", &layers_.dout_.row, N * OC);
    activations.plan_shared("dout transposed", &layers_.dout_.transposed, N * OC);
    x_transposed_ = setup_.recomputed ? &layers_.recomputed_[setup_.kind] : &own_x_;
    if (setup_.recomputed)
        activations.plan_shared("x transposed of " + setup_.kind, &x_transposed_->transposed, N * C);
    else
        activations.plan(&own_x_.transposed, N * C);
    activations.plan_shared("moment parts", &layers_.moment_parts_, moment_parts(N * C));
    if (setup_.gated) activations.plan_shared("cosines", &layers_.cosines_, OC / 2);
}

template <class Real>
void Linear<Real>::plan_scales() {
    const size_t N = static_cast<size_t>(rows_), C = static_cast<size_t>(inputs_), OC = static_cast<size_t>(outputs_);
    const bool mx = layers_.fp8_->scaling() == Fp8Scaling::mx;
    const ScaleLayout rows = mx ? ScaleLayout::mx : ScaleLayout::vectors;
    Arena& activations = layers_.activations_;
    activations.plan_shared("x scales", &layers_.x_.row_scales, scale_bytes(rows, N, C));
    activations.plan_shared("dout scales", &layers_.dout_.row_scales, scale_bytes(rows, N, OC));
    activations.plan_shared("dout transposed scales", &layers_.dout_.transposed_scales, scale_bytes(rows, OC, N));
    if (setup_.recomputed)
        activations.plan_shared("x transposed scales of " + setup_.kind, &x_transposed_->transposed_scales,
                                scale_bytes(rows, C, N));
    else
        activations.plan(&own_x_.transposed_scales, scale_bytes(rows, C, N));
}

template <class Real>
void Linear<Real>::leave_fp8(stream_t stream) {
    is_fp8_ = false;
    layers_.weight_codes_->leave(tensors_, stream);
}

// ---- forward and backward -------------------------------------------------------------------------------

template <class Real>
Quantized<e4m3> Linear<Real>::x_codes(const Pass& pass) {
    const bool evaluation = pass.kind == PassKind::evaluation;
    Fp8Registry& fp8 = *layers_.fp8_;
    Fp8State* state = evaluation && !fp8.uses_history() ? fp8.evaluation_state(tensors_, Fp8Role::x)
                                                        : fp8.state(tensors_, Fp8Role::x);
    layers_.x_.holder = tensors_;
    if (evaluation) return {codes_at(layers_.x_.row), nullptr, state, layers_.x_.row_scales, nullptr};
    x_transposed_->holder = tensors_;
    return {codes_at(layers_.x_.row), codes_at(x_transposed_->transposed), state, layers_.x_.row_scales,
            x_transposed_->transposed_scales};
}

template <class Real>
Operand<Real> Linear<Real>::input(const Real* value, const Real* low, const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        if (is_fp8_ && layers_.block_scales()) {
            const Quantized<e4m3> codes = x_codes(pass);
            const bool leaves_traces = pass.kind == PassKind::training;
            note_outliers(value, nullptr, pass);
            quantize_blocks(codes, nullptr, nullptr, value, pass.N(), inputs_, layers_.fp8_->scaling(), false,
                            leaves_traces ? layers_.fp8_->train_pass() : QuantizePass::replay, pass.stream);
            return {value, codes};
        }
        if (is_fp8_) {
            Operand<Real> x = cast_input(pass, [&](const Quantized<e4m3>& codes, QuantizePass cast) {
                quantize<e4m3>(codes, nullptr, nullptr, value, low, pass.N(), inputs_, false, cast, pass.stream);
            });
            x.value = value;
            return x;
        }
    }
    return {value, {}};
}

template <class Real>
void Linear<Real>::check_holds(const Shared& shared, const char* what) const {
    if (shared.holder == tensors_) return;
    const Fp8Registry& fp8 = *layers_.fp8_;
    throw Error(ExitCode::failure, strprintf("%s reads its FP8 codes of %s where %s's are", name_.c_str(), what,
                                             shared.holder < 0 ? "nobody" : fp8.layer_name(shared.holder).c_str()));
}

// --fp8-smooth: the input's channels are divided by their factors, before they are cast. Factors hold for a whole step.
template <class Real>
void Linear<Real>::smooth_source(const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        const Fp8Registry& fp8 = *layers_.fp8_;
        note_outliers(layers_.source_, nullptr, pass);
        float* const amax = pass.kind == PassKind::training ? fp8.channel_amax(tensors_) : nullptr;
        scale_columns(layers_.source_, amax, fp8.factors(tensors_), true, pass.N(), inputs_, pass.stream);
    }
}

// For records: of x as the product reads it, or, smoothed or with scales for blocks, before.
template <class Real>
template <class T>
void Linear<Real>::note_outliers(const T* x, const Fp8State* state, const Pass& pass) {
    const Fp8Registry& fp8 = *layers_.fp8_;
    if (!fp8.looks_for_outliers() || pass.kind != PassKind::training) return;
    const ProfileRange range("outliers", pass.stream);
    const size_t n = static_cast<size_t>(pass.N()) * static_cast<size_t>(inputs_);
    add_moments(fp8.outlier_sums().moments(tensors_), layers_.moment_parts_, x, n, state, pass.stream);
    if (setup_.gated) note_alignment(pass.stream);
}

// The same of each micro-step and rank. With one scale, the codes do; else what they are made from.
template <class Real>
void Linear<Real>::note_alignment(stream_t stream) {
    const Fp8Registry& fp8 = *layers_.fp8_;
    const auto measure = [&](const auto* weight) {
        gate_alignment(fp8.outlier_sums().alignment(tensors_), layers_.cosines_, weight, outputs_ / 2, inputs_, stream);
    };
    if (!layers_.block_scales())
        measure(layers_.weight_codes_->rows(tensors_).row);
    else if (fp8.scaling() == Fp8Scaling::mx)
        measure(weight());
    else
        measure(layers_.weights_.master(weight_.unit, weight_.tensor));
}

template <class Real>
void Linear<Real>::forward(Real* out, const Operand<Real>& x, const Pass& pass) {
    const Real* bias = bias_ ? layers_.weights_.weight(*bias_) : nullptr;
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8_) {
            check_holds(layers_.x_, "x");
            if (!layers_.block_scales() && !is_smooth()) note_outliers(x.codes.row, x.codes.state, pass);
            const Quantized<e4m3> w = layers_.weight_codes_->rows(tensors_);
            layers_.matmul_.forward_fp8(out, x.codes.row, x.codes.row_scale_inv(), w.row, w.row_scale_inv(), bias,
                                        pass.N(), inputs_, outputs_, pass.stream);
            if (probes(pass)) probe_forward(out, x, bias, pass);
            return;
        }
    layers_.matmul_.forward(out, x.value, weight(), bias, pass.N(), inputs_, outputs_, pass.stream);
}

template <class Real>
bool Linear<Real>::takes_gradient_from_norm() const {
    return setup_.gradient_from_norm && is_fp8_ && !layers_.block_scales() && outputs_ <= kWidestFusedGradient;
}

template <class Real>
void Linear<Real>::backward(Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const Pass& pass) {
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8_) {
            if (dout.codes == Gradient<Real>::Codes::written) check_holds(layers_.dout_, "dout");
            return with_gradient_codes([&](auto codes) { backward_fp8(codes, dinp, dout, x, pass); });
        }
    const int N = pass.N();
    if (bias_ && dout.bias == Gradient<Real>::Bias::none)
        bias_gradient(layers_.gradients_.gradient(*bias_), pass.scratch, dout.value, N, outputs_, pass.accumulate,
                      pass.stream);
    layers_.matmul_.wgrad(layers_.gradients_.gradient(weight_), dout.value, x.value, N, inputs_, outputs_,
                          pass.accumulate, pass.stream);
    layers_.matmul_.dgrad(dinp, dout.value, weight(), N, inputs_, outputs_, pass.stream);
}

template <class Real>
template <class F8>
void Linear<Real>::backward_fp8(const Quantized<F8>& codes, Real* dinp, const Gradient<Real>& dout,
                                const Operand<Real>& x, const Pass& pass) {
    using G = Gradient<Real>;
    const int N = pass.N();
    Fp8Registry& fp8 = *layers_.fp8_;
    float* const dbias = dout.bias == G::Bias::done ? nullptr : this->dbias();
    const auto cast = [&](QuantizePass quantize_pass) {
        quantize<F8>(codes, dbias, pass.scratch, dout.value, nullptr, N, outputs_, pass.accumulate, quantize_pass,
                     pass.stream);
    };
    if (dout.codes == G::Codes::none && layers_.block_scales()) {
        if constexpr (std::is_same_v<F8, e4m3>)
            quantize_blocks(codes, dbias, pass.scratch, dout.value, N, outputs_, fp8.scaling(), pass.accumulate,
                            fp8.train_pass(), pass.stream);
    } else if (dout.codes == G::Codes::none) {
        fill(Fp8Role::dout, PassKind::training, pass.stream, cast);
    } else if (dout.codes == G::Codes::measured) {
        cast(fp8.write_pass());
    } else if (dout.bias == G::Bias::parts && bias_) {
        finish_bias_gradient(dbias, layers_.bias_parts_, N, outputs_, pass.accumulate, pass.stream);
    }
    check_holds(*x_transposed_, "x, transposed");
    const Quantized<e4m3> w = layers_.weight_codes_->both(tensors_, pass.stream);
    const float* const factors = fp8.factors(tensors_);
    float* const dweight = layers_.gradients_.gradient(weight_);
    // The product is of x divided by its factors, and of weights multiplied by them.
    if (factors && pass.accumulate) scale_columns(dweight, nullptr, factors, true, outputs_, inputs_, pass.stream);
    layers_.matmul_.wgrad_fp8(dweight, codes.transposed, codes.transposed_scale_inv(), x.codes.transposed,
                              x.codes.transposed_scale_inv(), N, inputs_, outputs_, pass.accumulate, pass.stream);
    if (factors) scale_columns(dweight, nullptr, factors, false, outputs_, inputs_, pass.stream);
    layers_.matmul_.dgrad_fp8(dinp, codes.row, codes.row_scale_inv(), w.transposed, w.transposed_scale_inv(), N,
                              inputs_, outputs_, pass.stream);
    if (factors) scale_columns(dinp, nullptr, factors, true, N, inputs_, pass.stream);
    if (probes(pass)) probe_backward(dinp, dout, x, pass);
}

template class Linear<float>;
template class Linear<bf16>;

}  // namespace llmc
