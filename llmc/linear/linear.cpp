// Linear layers: memory for codes, forward, dgrad and wgrad, and the parts that a model's layers share. See linear.h.
#include "llmc/linear/linear.h"

#include <algorithm>

#include "llmc/device/trace.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/norm.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {

static void add_once(std::vector<std::string>& list, const std::string& item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

// "qkv, fc and fc_proj"
static std::string enumeration(const std::vector<std::string>& items) {
    std::string text = items.front();
    for (size_t i = 1; i < items.size(); i++) text += (i + 1 < items.size() ? ", " : " and ") + items[i];
    return text;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

template <class Real>
Linear<Real>::Linear(LinearLayers<Real>& layers, const std::string& name, int rows, const LinearSetup& setup,
                     const std::string& weight)
    : layers_(layers), name_(name), setup_(setup) {
    const ParameterTable& table = layers.weights_.table();
    weight_ = table.find(weight.empty() ? name + ".weight" : weight);
    bias_ = table.look_up(name + ".bias");
    const ParameterTensor& tensor = table.tensor(weight_);
    const bool is_fp8 = layers.fp8_ && tensor.codes != CodesFrom::nothing;
    shape_ = {rows, tensor.shape.at(1), tensor.shape.at(0), is_fp8 ? OperandType::e4m3 : operand_type<Real>};
    forward_codes_ = tensor.forward_codes;
    layers.layers_.push_back(this);
    // Products read the input as values now, or after the layer has left FP8.
    const bool reads_values = !forward_is_fp8() || layers.fp8_->layers_may_leave();
    if (reads_values && !setup.input_in_memory) {
        const size_t count = static_cast<size_t>(rows) * shape_.C;
        // Not kept if backward makes them again, or reads codes.
        if (setup.recomputed || (is_fp8 && !layers.fp8_->layers_may_leave()))
            layers.values_.plan_shared("x of " + setup.kind, &values_, count);
        else
            layers.values_.plan(&values_, count);
    }
    if (!is_fp8) return;
    number_ = layers.fp8_->add(name);
    layers.codes_->add(weight_, setup.kind, forward_codes_);
    plan_codes();
}

template <class Real>
void Linear<Real>::plan_codes() {
    const size_t N = shape_.N, C = shape_.C, OC = shape_.OC;
    Arena& activations = layers_.activations_;
    const ScaleLayout layout = layers_.fp8_->scaling() == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors;
    // Memory is shared by all layers that plan it under the same name.
    const auto plan = [&](Codes& to, const std::string& name, size_t rows, size_t columns) {
        activations.plan_shared(name, &to.codes, rows * columns);
        if (layers_.block_scales())
            activations.plan_shared(name + " scales", &to.scales, scale_bytes(layout, rows, columns));
    };
    if (input_goes_through_source()) activations.plan_shared("source", &layers_.source_, N * C);
    if (forward_is_fp8()) plan(layers_.x_.row, "x", N, C);
    plan(layers_.dout_.row, "dout", N, OC);
    plan(layers_.dout_.transposed, "dout transposed", OC, N);
    // Kept by this layer until backward, or shared by the layers of a kind if backward recomputes their inputs.
    const std::string owner = setup_.recomputed ? setup_.kind : name_;
    x_transposed_ = &layers_.x_transposed_[owner];
    plan(x_transposed_->transposed, "x transposed of " + owner, C, N);
}

// ---- codes ----------------------------------------------------------------------------------------------------------

template <class Real>
Quantized<e4m3> Linear<Real>::x_codes(const LayerPass& pass) {
    Quantized<e4m3> codes{nullptr, nullptr, layers_.fp8_->state(number_, Fp8Role::x, pass.kind)};
    // forward() reads the row codes, wgrad the transposed ones. If backward recomputes the input, that pass writes the
    // transposed codes, and row codes only if forward() runs again.
    if (forward_is_fp8() && (pass.kind != PassKind::recompute || setup_.runs_again)) {
        layers_.x_.holder = number_;
        codes.row = reinterpret_cast<e4m3*>(layers_.x_.row.codes);
        codes.row_scales = layers_.x_.row.scales;
    }
    if (pass.kind == (setup_.recomputed ? PassKind::recompute : PassKind::training)) {
        x_transposed_->holder = number_;
        codes.transposed = reinterpret_cast<e4m3*>(x_transposed_->transposed.codes);
        codes.transposed_scales = x_transposed_->transposed.scales;
    }
    return codes;
}

template <class Real>
Linear<Real>::GradientCodes Linear<Real>::gradient_codes() {
    Shared& d = layers_.dout_;
    d.holder = number_;
    const auto codes = [&]<class F8>(F8) -> GradientCodes {
        return Quantized<F8>{reinterpret_cast<F8*>(d.row.codes), reinterpret_cast<F8*>(d.transposed.codes),
                             layers_.fp8_->state(number_, Fp8Role::dout), d.row.scales, d.transposed.scales};
    };
    return layers_.fp8_->config().grad == Fp8Grad::e5m2 ? codes(e5m2{}) : codes(e4m3{});
}

template <class Real>
void Linear<Real>::check_holds(const Shared& shared, const char* what) const {
    if (shared.holder == number_) return;
    const Fp8Registry& fp8 = *layers_.fp8_;
    const std::string holder = shared.holder < 0 ? "no codes" : "those of " + fp8.layer_name(shared.holder);
    throw Error(ExitCode::failure, "{}: the memory for its FP8 codes of {} holds {}", name_, what, holder);
}

template <class Real>
template <class F8>
void Linear<Real>::cast(const Quantized<F8>& codes, Fp8Role role, QuantizePass cast_pass, const Real* value,
                        const Real* low, float* dbias, const LayerPass& pass) {
    Fp8Registry& fp8 = *layers_.fp8_;
    const int columns = role == Fp8Role::x ? shape_.C : shape_.OC;
    if constexpr (std::is_same_v<F8, e4m3>)
        if (layers_.block_scales())
            return quantize_blocks(codes, dbias, pass.scratch, value, pass.N, columns, fp8.scaling(), pass.accumulate,
                                   cast_pass, pass.stream);
    do {
        quantize<F8>(codes, dbias, pass.scratch, value, low, pass.N, columns, pass.accumulate, cast_pass, pass.stream);
    } while (!fp8.finish_run(cast_pass, number_, role, pass.kind, pass.stream));
}

// ---- forward --------------------------------------------------------------------------------------------------------

template <class Real>
Operand<Real> Linear<Real>::input_target(const LayerPass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        if (input_goes_through_source()) return {layers_.source_};
        if (forward_is_fp8()) return {nullptr, x_codes(pass), layers_.fp8_->first_run(pass.kind)};
    }
    return {values_};
}

template <class Real>
Operand<Real> Linear<Real>::input(Real* value, const Real* low, const LayerPass& pass) {
    Operand<Real> x{value};
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8()) {
            x.codes = x_codes(pass);
            LayerPass counted = pass;  // the first cast counts; recomputing is the second, if forward reads codes
            if (pass.kind == PassKind::recompute && !forward_is_fp8()) counted.kind = PassKind::training;
            if (x.codes.row || x.codes.transposed)
                cast(x.codes, Fp8Role::x, layers_.fp8_->first_run(counted.kind), value, low, nullptr, counted);
        }
    return x;
}

template <class Real>
void Linear<Real>::forward(Real* out, const Operand<Real>& x, const LayerPass& pass, const Real* addend) {
    const Real* bias = bias_ ? layers_.weights_.weight(*bias_) : nullptr;
    if constexpr (kCanBeFp8<Real>)
        if (forward_is_fp8()) {
            check_holds(layers_.x_, "x");
            const Quantized<e4m3> w = layers_.codes_->rows(number_);
            layers_.matmul_.forward_fp8(out, x.codes.row, x.codes.row_scale_inv(), w.row, w.row_scale_inv(),
                                        {bias, addend}, pass.N, shape_.C, shape_.OC, pass.stream);
            return;
        }
    layers_.matmul_.forward(out, x.value, weight(), bias, pass.N, shape_.C, shape_.OC, pass.stream, addend);
}

// ---- backward -------------------------------------------------------------------------------------------------------

template <class Real>
Gradient<Real> Linear<Real>::gradient_target(const LayerPass& pass) {
    Gradient<Real> dout;
    if (is_fp8() && !layers_.block_scales()) {
        dout.state = Gradient<Real>::Codes::wanted;
        dout.codes = gradient_codes();
        dout.cast_pass = layers_.fp8_->first_run(pass.kind);
    }
    return dout;
}

template <class Real>
bool Linear<Real>::accept(Gradient<Real>& dout, const LayerPass& pass) {
    if (layers_.fp8_->finish_run(dout.cast_pass, number_, Fp8Role::dout, pass.kind, pass.stream)) {
        dout.state = Gradient<Real>::Codes::written;
        return true;
    }
    dout.bias_parts = nullptr;  // not written by a run that measures
    return dout.value != nullptr;
}

template <class Real>
void Linear<Real>::backward(Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const LayerPass& pass) {
    const int N = pass.N, C = shape_.C, OC = shape_.OC;
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8()) {
            std::visit(
                [&](const auto& codes) {
                    cast_and_wgrad(codes, dout, x, pass);
                    const Quantized<e4m3> w = layers_.codes_->both(number_, pass.stream);
                    layers_.matmul_.dgrad_fp8(dinp, codes.row, codes.row_scale_inv(), w.transposed,
                                              w.transposed_scale_inv(), N, C, OC, pass.stream);
                },
                codes_of(dout));
            return;
        }
    wgrad(dout, x, pass);
    layers_.matmul_.dgrad(dinp, dout.value, weight(), N, C, OC, pass.stream);
}

template <class Real>
void Linear<Real>::wgrad(const Gradient<Real>& dout, const Operand<Real>& x, const LayerPass& pass) {
    const int N = pass.N, C = shape_.C, OC = shape_.OC;
    if (layers_.backward_observer_) layers_.backward_observer_(*this, x, dout, pass);
    if (bias_ && !dout.bias_done) bias_gradient(dbias(), pass.scratch, dout.value, N, OC, pass.accumulate, pass.stream);
    layers_.matmul_.wgrad(layers_.gradients_.gradient(weight_), dout.value, x.value, N, C, OC, pass.accumulate,
                          pass.stream);
}

template <class Real>
template <class F8>
void Linear<Real>::cast_and_wgrad(const Quantized<F8>& codes, const Gradient<Real>& dout, const Operand<Real>& x,
                                  const LayerPass& pass) {
    using G = Gradient<Real>;
    const int N = pass.N, C = shape_.C, OC = shape_.OC;
    if (dout.state == G::Codes::written) {
        check_holds(layers_.dout_, "dout");
        if (dout.bias_parts && bias_)
            finish_bias_gradient(dbias(), dout.bias_parts, N, OC, pass.accumulate, pass.stream);
    } else {
        const bool wanted = dout.state == G::Codes::wanted;
        cast(codes, Fp8Role::dout, wanted ? dout.cast_pass : layers_.fp8_->first_run(pass.kind), dout.value, nullptr,
             dout.bias_done ? nullptr : dbias(), pass);
    }
    check_holds(*x_transposed_, "x, transposed");
    float* const dweight = layers_.gradients_.gradient(weight_);
    layers_.matmul_.wgrad_fp8(dweight, codes.transposed, codes.transposed_scale_inv(), x.codes.transposed,
                              x.codes.transposed_scale_inv(), N, C, OC, pass.accumulate, pass.stream);
}

// ---- all layers -----------------------------------------------------------------------------------------------------

template <class Real>
LinearLayers<Real>::LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, Arena& values,
                                 const Fp8Config* fp8)
    : weights_(weights),
      gradients_(gradients),
      matmul_(matmul),
      values_(values),
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
    fp8_->plan(activations_);
    if (!block_scales()) return;
    const ShardLayout& layout = weights_.layout();
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
        if (!layer->forward_codes_)
            refuse("--fp8-layers {} needs --fp8-recipe delayed or current",
                   layer->name() == kHeadLayer ? "+lm_head" : "-forward");
        for (const int extent : {layer->shape().OC, layer->shape().C}) {
            if (extent % length == 0) continue;
            channels = extent;
            add_once(odd_channels, layer->setup_.kind);
        }
        if (layer->shape().N % length != 0) {
            rows = layer->shape().N;
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
    for (const Linear<Real>* layer : layers_)
        if (std::find(shapes.begin(), shapes.end(), layer->shape()) == shapes.end()) shapes.push_back(layer->shape());
    return shapes;
}

template <class Real>
ProductUses LinearLayers<Real>::products(int N) const {
    ProductUses products;
    const auto add = [&](const Linear<Real>& layer, OperandType forward, OperandType dout, Fp8Scaling scaling) {
        const int C = layer.shape().C, OC = layer.shape().OC;
        const auto enter = [&](Product::Kind kind, OperandType type, int rows, bool bias, bool accumulate) {
            const Fp8Scaling scales = llmc::is_fp8(type) ? scaling : Fp8Scaling::tensor;
            products[{kind, type, rows, C, OC, bias, accumulate, scales}].insert(layer.setup_.kind);
        };
        for (const int rows : {std::min(layer.shape().N, N), N % layer.shape().N}) {
            if (rows == 0) continue;
            enter(Product::forward, forward, rows, layer.bias_.has_value(), layer.setup_.has_addend);
            enter(Product::dgrad, dout, rows, false, false);
            for (const bool accumulate : {false, true}) enter(Product::wgrad, dout, rows, false, accumulate);
        }
    };
    for (const Linear<Real>* layer : layers_) {
        if (layer->is_fp8()) {
            const OperandType fp8 = fp8_->config().grad == Fp8Grad::e5m2 ? OperandType::e5m2_e4m3 : OperandType::e4m3;
            add(*layer, layer->forward_is_fp8() ? OperandType::e4m3 : operand_type<Real>, fp8, fp8_->scaling());
        }
        if (!layer->is_fp8() || fp8_->layers_may_leave())
            add(*layer, operand_type<Real>, operand_type<Real>, Fp8Scaling::tensor);
    }
    return products;
}

template <class Real>
int64_t LinearLayers<Real>::fp8_products(int N) const {
    int64_t products = 0;
    for (const Linear<Real>* layer : layers_) {
        if (!layer->is_fp8()) continue;
        const bool forward = layer->forward_is_fp8();
        products += (2 + forward) * div_up(N, layer->shape().N) + (forward && layer->setup_.runs_again);
    }
    return products;
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
std::vector<Fp8Fallback> LinearLayers<Real>::leave_fp8(int64_t step, stream_t stream) {
    if (!fp8_) return {};
    const std::vector<Fp8Fallback> left = fp8_->take_fallbacks();
    if (step >= fp8_->config().until) fp8_->mark_all_left();
    for (Linear<Real>* layer : layers_)
        if (layer->is_fp8() && fp8_->has_left(layer->number_)) layer->leave_fp8(stream);
    return left;
}

template class LinearLayers<float>;
template class LinearLayers<bf16>;
template class Linear<float>;
template class Linear<bf16>;

}  // namespace llmc
