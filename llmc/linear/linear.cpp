// Linear layers: memory for codes, forward, dgrad and wgrad, and the parts that a model's layers share. See linear.h.
#include "llmc/linear/linear.h"

#include <algorithm>

#include "llmc/device/trace.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/hopper/matmul_gelu.h"
#include "llmc/kernels/norm.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {
namespace {

void add_once(std::vector<std::string>& list, const std::string& item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

// "qkv, fc and fc_proj"
std::string enumeration(const std::vector<std::string>& items) {
    std::string text = items.front();
    for (size_t i = 1; i < items.size(); i++) text += (i + 1 < items.size() ? ", " : " and ") + items[i];
    return text;
}

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------------------------

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
    layers.codes_->add(weight_, setup.kind);
    plan_codes();
    if (takes_gradient_from_norm())
        layers.activations_.plan_shared("bias parts", &layers.bias_parts_,
                                        norm_backward_fp8_bias_parts(rows, outputs_));
}

template <class Real>
void Linear<Real>::plan_codes() {
    const size_t N = rows_, C = inputs_, OC = outputs_;
    Arena& activations = layers_.activations_;
    const ScaleLayout layout = layers_.fp8_->scaling() == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors;
    // Memory is shared by all layers that plan it under the same name.
    const auto plan = [&](Codes& to, const std::string& name, size_t rows, size_t columns) {
        activations.plan_shared(name, &to.codes, rows * columns);
        if (layers_.block_scales())
            activations.plan_shared(name + " scales", &to.scales, scale_bytes(layout, rows, columns));
    };
    if (input_goes_through_source()) activations.plan_shared("source", &layers_.source_, N * C);
    plan(layers_.x_.row, "x", N, C);
    if (!backward_is_fp8()) return;
    plan(layers_.dout_.row, "dout", N, OC);
    plan(layers_.dout_.transposed, "dout transposed", OC, N);
    // Kept by this layer until backward, or shared by the layers of a kind if backward recomputes their inputs.
    const std::string owner = setup_.recomputed ? setup_.kind : name_;
    x_transposed_ = &layers_.x_transposed_[owner];
    plan(x_transposed_->transposed, "x transposed of " + owner, C, N);
}

template <class Real>
void Linear<Real>::leave_fp8(stream_t stream) {
    is_fp8_ = false;
    layers_.codes_->leave(tensors_, stream);
}

// ---- forward and backward -------------------------------------------------------------------------------------------

template <class Real>
Quantized<e4m3> Linear<Real>::x_codes(const Pass& pass) {
    const bool evaluation = pass.kind == PassKind::evaluation;
    Fp8Registry& fp8 = *layers_.fp8_;
    Fp8State* state = evaluation && !fp8.uses_history() ? fp8.evaluation_state(tensors_, Fp8Role::x)
                                                        : fp8.state(tensors_, Fp8Role::x);
    Quantized<e4m3> codes{nullptr, nullptr, state};
    // forward() reads the row codes, wgrad the transposed ones. If backward recomputes the input, that pass writes the
    // transposed codes, and row codes only if forward() runs again.
    if (pass.kind != PassKind::recompute || setup_.runs_again) {
        layers_.x_.holder = tensors_;
        codes.row = reinterpret_cast<e4m3*>(layers_.x_.row.codes);
        codes.row_scales = layers_.x_.row.scales;
    }
    if (backward_is_fp8() && !evaluation && !(setup_.recomputed && pass.kind == PassKind::training)) {
        x_transposed_->holder = tensors_;
        codes.transposed = reinterpret_cast<e4m3*>(x_transposed_->transposed.codes);
        codes.transposed_scales = x_transposed_->transposed.scales;
    }
    return codes;
}

template <class Real>
Operand<Real> Linear<Real>::input(const Real* value, const Real* low, const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        if (needs_codes(pass) && layers_.block_scales()) {
            const Quantized<e4m3> codes = x_codes(pass);
            const bool leaves_traces = pass.kind == PassKind::training;
            quantize_blocks(codes, nullptr, nullptr, value, pass.N(), inputs_, layers_.fp8_->scaling(), false,
                            leaves_traces ? layers_.fp8_->train_pass() : QuantizePass::replay, pass.stream);
            return {value, codes};
        }
        if (needs_codes(pass)) {
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
    const std::string holder = shared.holder < 0 ? "no codes" : "those of " + fp8.layer_name(shared.holder);
    throw Error(ExitCode::failure, "{}: the memory for its FP8 codes of {} holds {}", name_, what, holder);
}

template <class Real>
void Linear<Real>::forward(Real* out, const Operand<Real>& x, const Pass& pass) {
    const Real* bias = bias_ ? layers_.weights_.weight(*bias_) : nullptr;
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8_) {
            check_holds(layers_.x_, "x");
            const Quantized<e4m3> w = layers_.codes_->rows(tensors_);
            layers_.matmul_.forward_fp8(out, x.codes.row, x.codes.row_scale_inv(), w.row, w.row_scale_inv(), bias,
                                        pass.N(), inputs_, outputs_, pass.stream);
            return;
        }
    layers_.matmul_.forward(out, x.value, weight(), bias, pass.N(), inputs_, outputs_, pass.stream);
}

template <class Real>
bool Linear<Real>::takes_gradient_from_norm() const {
    return setup_.gradient_from_norm && casts_gradients() && outputs_ <= kWidestFusedGradient;
}

template <class Real>
void Linear<Real>::backward(Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const Pass& pass) {
    if constexpr (kCanBeFp8<Real>)
        if (backward_is_fp8()) {
            if (dout.codes == Gradient<Real>::Codes::written) check_holds(layers_.dout_, "dout");
            return with_gradient_codes([&]<class F8>(Quantized<F8> codes) {
                if (dout.row) codes.row = static_cast<F8*>(dout.row);
                backward_fp8(codes, dinp, dout, x, pass);
            });
        }
    if (layers_.backward_observer_) layers_.backward_observer_(*this, x, dout, pass);
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
void Linear<Real>::cast_and_wgrad(const Quantized<F8>& codes, const Gradient<Real>& dout, const Operand<Real>& x,
                                  const Pass& pass) {
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
        cast_by_recipe(Fp8Role::dout, PassKind::training, pass.stream, cast);
    } else if (dout.codes == G::Codes::measured) {
        cast(fp8.write_pass());
    } else if (dout.bias == G::Bias::parts && bias_) {
        finish_bias_gradient(dbias, layers_.bias_parts_, N, outputs_, pass.accumulate, pass.stream);
    }
    check_holds(*x_transposed_, "x, transposed");
    float* const dweight = layers_.gradients_.gradient(weight_);
    layers_.matmul_.wgrad_fp8(dweight, codes.transposed, codes.transposed_scale_inv(), x.codes.transposed,
                              x.codes.transposed_scale_inv(), N, inputs_, outputs_, pass.accumulate, pass.stream);
}

template <class Real>
template <class F8>
void Linear<Real>::backward_fp8(const Quantized<F8>& codes, Real* dinp, const Gradient<Real>& dout,
                                const Operand<Real>& x, const Pass& pass) {
    cast_and_wgrad(codes, dout, x, pass);
    const Quantized<e4m3> w = layers_.codes_->both(tensors_, pass.stream);
    layers_.matmul_.dgrad_fp8(dinp, codes.row, codes.row_scale_inv(), w.transposed, w.transposed_scale_inv(), pass.N(),
                              inputs_, outputs_, pass.stream);
}

// ---- with GELU, in one kernel ---------------------------------------------------------------------------------------

// Not used with recipes that run the producer twice.
template <class Real>
bool Linear<Real>::multiplies_with_gelu(const Linear& next, const Pass& pass) const {
    if (!backward_is_fp8() || !next.backward_is_fp8() || !bias_ || next.input_goes_through_source()) return false;
    const Fp8Registry& fp8 = *layers_.fp8_;
    return fp8.uses_history() && !layers_.block_scales() && hopper::can_multiply_with_gelu(pass.N(), inputs_, outputs_);
}

template <class Real>
Operand<Real> Linear<Real>::forward_gelu(Real* h, void* row, Linear& next, const Operand<Real>& x, const Pass& pass) {
    Operand<Real> active;
    if constexpr (kCanBeFp8<Real>) {
        check_holds(layers_.x_, "x");
        const Quantized<e4m3> w = layers_.codes_->rows(tensors_);
        const bf16* const bias = layers_.weights_.weight(*bias_);
        active = next.cast_input(pass, [&](Quantized<e4m3> codes, QuantizePass cast) {
            if (codes.row) codes.row = static_cast<e4m3*>(row);
            hopper::multiply_gelu_forward(codes, h, {x.codes.row, &x.codes.state->scale_inv},
                                          {w.row, &w.state->scale_inv}, bias, pass.N(), inputs_, outputs_, cast,
                                          pass.stream);
        });
        if (active.codes.row) active.codes.row = static_cast<e4m3*>(row);
        layers_.matmul_.count_fp8();
    }
    return active;
}

template <class Real>
Gradient<Real> Linear<Real>::backward_gelu(const Real* h, void* row, Linear& before, const Gradient<Real>& dout,
                                           const Operand<Real>& x, const Pass& pass) {
    using G = Gradient<Real>;
    if constexpr (kCanBeFp8<Real>) {
        if (dout.codes == G::Codes::written) check_holds(layers_.dout_, "dout");
        with_gradient_codes([&]<class F8>(const Quantized<F8>& codes) {
            cast_and_wgrad(codes, dout, x, pass);
            const Quantized<e4m3> w = layers_.codes_->both(tensors_, pass.stream);
            before.cast_gradient(pass, [&]<class Any>(Quantized<Any> dh, QuantizePass cast) {
                if constexpr (std::is_same_v<Any, F8>) {  // all layers have one format
                    dh.row = static_cast<F8*>(row);
                    hopper::multiply_gelu_backward<F8>(
                        dh, {before.dbias(), pass.scratch, pass.accumulate}, {codes.row, &codes.state->scale_inv},
                        {w.transposed, &w.state->scale_inv}, h, pass.N(), outputs_, inputs_, cast, pass.stream);
                }
            });
        });
        layers_.matmul_.count_fp8();
    }
    return {nullptr, G::Codes::written, G::Bias::done, row};
}

// ---- all layers -----------------------------------------------------------------------------------------------------

template <class Real>
LinearLayers<Real>::LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const Fp8Config* fp8)
    : weights_(weights),
      gradients_(gradients),
      matmul_(matmul),
      fp8_(fp8 ? std::make_unique<Fp8Registry>(*fp8, weights.layout().comm()) : nullptr) {
    if (!fp8) return;
    if constexpr (kCanBeFp8<Real>) {
        codes_ = std::make_unique<WeightCodes>(weights, *fp8_);
    } else {
        throw Error(ExitCode::failure, "a model in FP32 has no FP8 layers");
    }
}

template <class Real>
LinearLayers<Real>::~LinearLayers() = default;

template <class Real>
void LinearLayers<Real>::finish_planning() {
    if (!fp8_) return;
    check_recipe();
    fp8_->plan(activations_);
}

// Throws if the recipe does not support this model or sharding.
template <class Real>
void LinearLayers<Real>::check_recipe() const {
    const ShardLayout& layout = weights_.layout();
    if (fp8_->config().grad == Fp8Grad::bf16 && !layout.keeps_whole_weights())
        refuse("--fp8-grad bf16 needs whole weights on every rank, which --zero 3 does not keep; use --zero 2");
    if (!block_scales()) return;
    const bool is_mx = fp8_->scaling() == Fp8Scaling::mx;
    const char* const name = word_of(fp8_->config().recipe);
    if (layout.is_sliced() && !(is_mx && layout.keeps_whole_weights()))
        refuse(
            "--fp8-recipe {} needs whole weights on every rank, which --zero {} does not keep; use {} or "
            "--fp8-recipe delayed",
            name, layout.stage(), is_mx ? "--zero 2" : "--zero 0");
    const int length = block_length(fp8_->scaling());
    std::vector<std::string> odd_channels, odd_rows;  // kinds of layers
    int channels = 0, rows = 0;
    for (const Linear<Real>* layer : layers_) {
        if (!layer->is_fp8()) continue;
        if (layer->name() == kHeadLayer)
            refuse("--fp8-layers +{} needs --fp8-recipe delayed or current", layer->name());
        for (const int extent : {layer->outputs(), layer->inputs()}) {
            if (extent % length == 0) continue;
            channels = extent;
            add_once(odd_channels, layer->setup_.kind);
        }
        if (layer->rows() % length != 0) {
            rows = layer->rows();
            add_once(odd_rows, layer->setup_.kind);
        }
    }
    if (!odd_channels.empty())
        refuse(
            "--fp8-recipe {}: {} channels are not a multiple of {}, the length of a block, which {} need; use "
            "--fp8-recipe {}current or delayed",
            name, channels, length, enumeration(odd_channels), is_mx ? "" : "mxfp8, ");
    if (!odd_rows.empty())
        refuse(
            "--fp8-recipe {}: {} tokens per micro-batch (batch * seq) are not a multiple of {}, the length of a "
            "block, which the weight gradients of {} need; change --batch or --seq, or use --fp8-recipe current or "
            "delayed",
            name, rows, length, enumeration(odd_rows));
}

template <class Real>
void LinearLayers<Real>::allocate(stream_t stream) {
    for (const Matmul::LinearShape& shape : shapes()) matmul_.reserve(shape);
    if (!fp8_) return;
    activations_.allocate();
    fp8_->allocate(stream);
    codes_->allocate();
}

template <class Real>
std::vector<Matmul::LinearShape> LinearLayers<Real>::shapes() const {
    std::vector<Matmul::LinearShape> shapes;
    for (const Linear<Real>* layer : layers_) {
        const OperandType type = layer->is_fp8() ? OperandType::e4m3 : operand_type<Real>;
        const Matmul::LinearShape shape{layer->rows(), layer->inputs(), layer->outputs(), type};
        if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    }
    return shapes;
}

template <class Real>
std::map<Product, std::set<std::string>> LinearLayers<Real>::products(int N) const {
    std::map<Product, std::set<std::string>> products;
    const auto add = [&](const Linear<Real>& layer, OperandType x, OperandType dout, Fp8Scaling scaling) {
        const int C = layer.inputs(), OC = layer.outputs();
        const auto enter = [&](Product::Kind kind, OperandType type, int rows, bool bias, bool accumulate) {
            const Fp8Scaling scales = llmc::is_fp8(type) ? scaling : Fp8Scaling::tensor;
            products[{kind, type, rows, C, OC, bias, accumulate, scales}].insert(layer.setup_.kind);
        };
        for (const int rows : {std::min(layer.rows(), N), N % layer.rows()}) {
            if (rows == 0) continue;
            enter(Product::forward, x, rows, layer.bias_.has_value(), false);
            enter(Product::dgrad, dout, rows, false, false);
            for (const bool accumulate : {false, true}) enter(Product::wgrad, dout, rows, false, accumulate);
        }
    };
    for (const Linear<Real>* layer : layers_) {
        if (layer->is_fp8()) {
            const OperandType fp8 = fp8_->config().grad == Fp8Grad::e5m2 ? OperandType::e5m2_e4m3 : OperandType::e4m3;
            add(*layer, OperandType::e4m3, layer->backward_is_fp8() ? fp8 : operand_type<Real>, fp8_->scaling());
        }
        if (!layer->is_fp8() || fp8_->layers_may_leave())
            add(*layer, operand_type<Real>, operand_type<Real>, Fp8Scaling::tensor);
    }
    return products;
}

template <class Real>
Linear<Real>& LinearLayers<Real>::find(const std::string& name) const {
    for (Linear<Real>* layer : layers_)
        if (layer->name() == name) return *layer;
    throw Error(ExitCode::failure, "no linear layer is called " + name);
}

template <class Real>
int LinearLayers<Real>::token_multiple() const {
    if (!fp8_) return 1;
    return block_scales() ? block_length(fp8_->scaling()) : 16;
}

template <class Real>
void LinearLayers<Real>::prepare_weights(stream_t stream) {
    if (codes_)
        codes_->prepare(stream);
    else
        weights_.publish(stream);
}

template <class Real>
void LinearLayers<Real>::make_weights_again(stream_t stream) {
    if (codes_)
        codes_->write_again(stream);
    else
        weights_.publish_again(stream);
}

template <class Real>
std::vector<NamedMemory> LinearLayers<Real>::weight_codes() const {
    return codes_ ? codes_->memory() : std::vector<NamedMemory>();
}

template <class Real>
std::vector<Fp8Fallback> LinearLayers<Real>::leave_fp8(int64_t step, stream_t stream) {
    if (!fp8_) return {};
    const std::vector<Fp8Fallback> left = fp8_->take_fallbacks();
    if (step >= fp8_->config().until) fp8_->mark_all_left();
    for (Linear<Real>* layer : layers_)
        if (layer->is_fp8() && fp8_->has_left(layer->tensors_)) layer->leave_fp8(stream);
    return left;
}

template class LinearLayers<float>;
template class LinearLayers<bf16>;
template class Linear<float>;
template class Linear<bf16>;

}  // namespace llmc
