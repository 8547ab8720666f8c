#include "llmc/linear/linear.h"

#include <algorithm>

#include "llmc/device/trace.h"
#include "llmc/kernels/bias.h"
#include "llmc/kernels/layernorm_backward_fp8.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/kernels/quantize_flat.h"

namespace llmc {
namespace {

// Elements of a block along the dimension that products sum over.
int block_length(Fp8Scaling scaling) { return scaling == Fp8Scaling::block ? kScaleVector : kMxVector; }

void add_once(std::vector<std::string>& list, const std::string& item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

// "qkv, fc and fc_proj"
std::string enumeration(const std::vector<std::string>& items) {
    std::string text = items.front();
    for (size_t i = 1; i < items.size(); i++) text += (i + 1 < items.size() ? ", " : " and ") + items[i];
    return text;
}

e4m3* codes_at(uint8_t* memory) { return reinterpret_cast<e4m3*>(memory); }

}  // namespace

// ---- all layers ----------------------------------------------------------------------------------------------------

template <class Real>
LinearLayers<Real>::LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const Fp8Config* fp8,
                                 const Fp8Layers& layers)
    : weights_(weights),
      gradients_(gradients),
      matmul_(matmul),
      fp8_(fp8 ? std::make_unique<Fp8Registry>(*fp8, weights.layout().comm()) : nullptr),
      wanted_(layers) {
    if (fp8 && !kCanBeFp8<Real>) throw Error(ExitCode::failure, "this build or precision has no FP8");
}

template <class Real>
void LinearLayers<Real>::finish_planning() {
    if (!fp8_) return;
    check_recipe();
    fp8_->plan(activations_);
}

// What scales for blocks cannot do.
template <class Real>
void LinearLayers<Real>::check_recipe() const {
    if (!block_scales()) return;
    const Fp8Recipe recipe = fp8_->config().recipe;
    const char* name = kFp8Recipes[static_cast<int>(recipe)];
    if (weights_.layout().is_sliced() && (recipe == Fp8Recipe::block || !weights_.layout().keeps_whole_weights()))
        throw Error(ExitCode::bad_flags,
                    strprintf("--fp8-recipe %s needs whole weights on every rank, which --zero %d does not keep; use "
                              "%s or --fp8-recipe delayed",
                              name, weights_.layout().stage(), recipe == Fp8Recipe::block ? "--zero 0" : "--zero 2"));
    const int length = block_length(fp8_->scaling());
    std::vector<std::string> odd_channels, odd_rows;  // kinds of layers
    int channels = 0, rows = 0;
    for (const Linear<Real>* layer : layers_) {
        if (!layer->is_fp8()) continue;
        if (layer->setup_.from_working_copy)
            throw Error(ExitCode::bad_flags,
                        "--fp8-layers +" + layer->name() + " needs --fp8-recipe delayed or current");
        for (const int extent : {layer->outputs(), layer->inputs()})
            if (extent % length != 0) channels = extent, add_once(odd_channels, layer->setup_.kind);
        if (layer->rows() % length != 0) rows = layer->rows(), add_once(odd_rows, layer->setup_.kind);
    }
    if (!odd_channels.empty())
        throw Error(ExitCode::bad_flags,
                    strprintf("--fp8-recipe %s: %d channels are not a multiple of %d, the length of a block, which %s "
                              "need; use --fp8-recipe %scurrent or delayed",
                              name, channels, length, enumeration(odd_channels).c_str(),
                              recipe == Fp8Recipe::block ? "mxfp8, " : ""));
    if (!odd_rows.empty())
        throw Error(ExitCode::bad_flags,
                    strprintf("--fp8-recipe %s: %d tokens a micro-batch (batch * seq) are not a multiple of %d, the "
                              "length of a block, which the weight gradients of %s need; change --batch or --seq, or "
                              "use --fp8-recipe current or delayed",
                              name, rows, length, enumeration(odd_rows).c_str()));
}

template <class Real>
void LinearLayers<Real>::allocate(stream_t stream) {
    if (operand_type<Real> != OperandType::fp32)  // whose products need no memory of their own
        for (const Matmul::LinearShape& shape : shapes()) matmul_.reserve(shape.N, shape.C, shape.OC);
    if (!fp8_) return;
    activations_.allocate();
    if (weight_codes_.bytes() > 0) weight_codes_.allocate();
    fp8_->allocate(stream);
}

template <class Real>
std::vector<Matmul::LinearShape> LinearLayers<Real>::shapes() const {
    std::vector<Matmul::LinearShape> shapes;
    for (const Linear<Real>* layer : layers_) {
        const Matmul::LinearShape shape{layer->rows(), layer->inputs(), layer->outputs()};
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
            products[{kind, type, rows, C, OC, bias, accumulate, scaling}].insert(layer.setup_.kind);
        };
        for (const int rows : {std::min(layer.rows(), N), N % layer.rows()}) {
            if (rows == 0) continue;
            enter(Product::forward, x, rows, layer.bias_.has_value(), false);
            enter(Product::dgrad, dout, rows, false, false);
            for (const bool accumulate : {false, true}) enter(Product::wgrad, dout, rows, false, accumulate);
        }
    };
    for (const Linear<Real>* layer : layers_) {
        if (layer->is_fp8())
            add(*layer, OperandType::e4m3, fp8_->config().e4m3_gradients ? OperandType::e4m3 : OperandType::e5m2_e4m3,
                fp8_->scaling());
        if (!layer->is_fp8() || fp8_->falls_back())
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
int LinearLayers<Real>::fp8_count() const {
    return static_cast<int>(
        std::count_if(layers_.begin(), layers_.end(), [](const Linear<Real>* layer) { return layer->is_fp8(); }));
}

template <class Real>
int LinearLayers<Real>::token_multiple() const {
    if (!fp8_) return 1;
    return block_scales() ? block_length(fp8_->scaling()) : 16;
}

template <class Real>
void LinearLayers<Real>::prepare_weights(stream_t stream) {
    if (!fp8_) return weights_.publish(stream);
    for (Linear<Real>* layer : layers_) layer->keep_in_fp8();
    // Scales are functions of the master weights alone, whoever has which slice of them.
    if (weights_.to_be_measured() && !block_scales()) measure_weights(stream);
    weights_.set_measured();
    if (codes_travel()) fp8_->share_weight_amaxes(stream);
    fp8_->set_weight_scales(stream);
    weights_.publish(stream, fp8_->write_pass());
    write_weights(false, stream);
}

// The codes that do not travel; those that are transposed where they are needed, are to be transposed anew.
template <class Real>
void LinearLayers<Real>::write_weights(bool again, stream_t stream) {
    for (auto& [kind, shared] : gathered_) shared.holder = kNobody;
    for (Linear<Real>* layer : layers_) layer->own_w_.holder = kNobody;
    for (Linear<Real>* layer : layers_)
        if (layer->is_fp8() && !layer->codes_travel()) layer->write_weight(again, stream);
}

template <class Real>
void LinearLayers<Real>::make_weights_again(stream_t stream) {
    weights_.publish_again(stream);
    if (fp8_) write_weights(true, stream);
}

template <class Real>
std::vector<NamedMemory> LinearLayers<Real>::weight_codes() const {
    std::vector<NamedMemory> codes;
    for (const Linear<Real>* layer : layers_) {
        if (!layer->is_fp8() || layer->codes_travel()) continue;
        const size_t count = static_cast<size_t>(layer->inputs()) * static_cast<size_t>(layer->outputs());
        const std::string name = weights_.table().tensor(layer->weight_).name;
        codes.push_back({name + " in FP8", layer->own_w_.row, count});
        codes.push_back({name + " in FP8, transposed", layer->own_w_.transposed, count});
    }
    return codes;
}

template <class Real>
void LinearLayers<Real>::measure_weights(stream_t stream) {
    if (codes_travel()) return weights_.measure_slices(stream);
    const ProfileRange range("measure FP8 weights", stream);
    for (Linear<Real>* layer : layers_)
        if (layer->is_fp8() && !layer->setup_.from_working_copy) layer->quantize_master(QuantizePass::measure, stream);
}

template <class Real>
std::vector<Fp8Fallback> LinearLayers<Real>::fall_back(stream_t stream) {
    if (!fp8_) return {};
    const std::vector<Fp8Fallback> left = fp8_->take_fallbacks();
    for (Linear<Real>* layer : layers_)
        if (layer->is_fp8() && fp8_->has_left(layer->tensors_)) layer->leave_fp8(stream);
    return left;
}

// ---- one layer: memory ---------------------------------------------------------------------------------------------

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
    is_fp8_ = layers.fp8_ && layers.wanted_.is_fp8(name);
    if (!is_fp8_) return;
    tensors_ = layers.fp8_->add(name);
    plan_codes();
    if (layers.block_scales()) plan_scales();
    if (takes_gradient_from_norm())
        layers.activations_.plan_shared("bias parts", &layers.bias_parts_,
                                        layernorm_backward_fp8_bias_parts(rows, outputs_));
}

template <class Real>
void Linear<Real>::plan_codes() {
    const size_t N = static_cast<size_t>(rows_), C = static_cast<size_t>(inputs_), OC = static_cast<size_t>(outputs_);
    Arena &activations = layers_.activations_, &weights = layers_.weight_codes_;
    if (input_goes_through_source()) activations.plan_shared("source", &layers_.source_, N * C);
    activations.plan_shared("x", &layers_.x_.row, N * C);
    activations.plan_shared("dout", &layers_.dout_.row, N * OC);
    activations.plan_shared("dout transposed", &layers_.dout_.transposed, N * OC);
    x_transposed_ = setup_.recomputed ? &layers_.recomputed_[setup_.kind] : &own_x_;
    if (setup_.recomputed)
        activations.plan_shared("x transposed of " + setup_.kind, &x_transposed_->transposed, N * C);
    else
        activations.plan(&own_x_.transposed, N * C);
    const bool whole = setup_.from_working_copy || layers_.weights_.layout().keeps_whole_weights();
    w_transposed_ = whole ? &own_w_ : &layers_.gathered_[setup_.kind];
    if (!codes_travel()) weights.plan(&own_w_.row, C * OC);
    if (whole)
        weights.plan(&own_w_.transposed, C * OC);
    else
        weights.plan_shared("w transposed of " + setup_.kind, &w_transposed_->transposed, C * OC);
}

template <class Real>
void Linear<Real>::plan_scales() {
    const size_t N = static_cast<size_t>(rows_), C = static_cast<size_t>(inputs_), OC = static_cast<size_t>(outputs_);
    const bool mx = layers_.fp8_->scaling() == Fp8Scaling::mx;
    const ScaleLayout rows = mx ? ScaleLayout::mx : ScaleLayout::vectors, tiles = mx ? rows : ScaleLayout::tiles;
    Arena &activations = layers_.activations_, &weights = layers_.weight_codes_;
    activations.plan_shared("x scales", &layers_.x_.row_scales, scale_bytes(rows, N, C));
    activations.plan_shared("dout scales", &layers_.dout_.row_scales, scale_bytes(rows, N, OC));
    activations.plan_shared("dout transposed scales", &layers_.dout_.transposed_scales, scale_bytes(rows, OC, N));
    if (setup_.recomputed)
        activations.plan_shared("x transposed scales of " + setup_.kind, &x_transposed_->transposed_scales,
                                scale_bytes(rows, C, N));
    else
        activations.plan(&own_x_.transposed_scales, scale_bytes(rows, C, N));
    weights.plan(&own_w_.row_scales, scale_bytes(tiles, OC, C));
    weights.plan(&own_w_.transposed_scales, scale_bytes(tiles, C, OC));
}

// ---- one layer: weights --------------------------------------------------------------------------------------------

template <class Real>
Quantized<e4m3> Linear<Real>::w_codes() const {
    e4m3* row = codes_at(own_w_.row);
    if (codes_travel()) row = const_cast<e4m3*>(layers_.weights_.fp8_weight(weight_.unit, weight_.tensor));
    return {row, codes_at(w_transposed_->transposed), layers_.fp8_->state(tensors_, Fp8Role::w), own_w_.row_scales,
            own_w_.transposed_scales};
}

// The source of mx codes is the working copy.
template <class Real>
void Linear<Real>::keep_in_fp8() {
    if (!is_fp8_ || setup_.from_working_copy || layers_.fp8_->scaling() == Fp8Scaling::mx) return;
    layers_.weights_.keep_in_fp8(weight_.unit, weight_.tensor, layers_.fp8_->state(tensors_, Fp8Role::w));
}

template <class Real>
void Linear<Real>::quantize_master([[maybe_unused]] QuantizePass pass, [[maybe_unused]] stream_t stream) {
    if constexpr (kCanBeFp8<Real>)
        quantize_weight(w_codes(), layers_.weights_.master(weight_.unit, weight_.tensor), outputs_, inputs_, pass,
                        stream);
}

// Both layouts of a weight that this rank has whole.
template <class Real>
void Linear<Real>::write_weight([[maybe_unused]] bool again, [[maybe_unused]] stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        Fp8Registry& fp8 = *layers_.fp8_;
        own_w_.holder = tensors_;
        if (setup_.from_working_copy || fp8.scaling() == Fp8Scaling::mx) return write_from_working_copy(again, stream);
        const ProfileRange range("quantize weights", stream);
        if (fp8.scaling() == Fp8Scaling::block)
            quantize_weight_tiles(w_codes(), layers_.weights_.master(weight_.unit, weight_.tensor), outputs_, inputs_,
                                  again ? QuantizePass::replay : fp8.train_pass(), stream);
        else
            quantize_master(again ? QuantizePass::replay : fp8.write_pass(), stream);
    }
}

template <class Real>
void Linear<Real>::write_from_working_copy([[maybe_unused]] bool again, [[maybe_unused]] stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        Fp8Registry& fp8 = *layers_.fp8_;
        layers_.weights_.gather(weight_.unit, stream);
        {
            const ProfileRange range("quantize weights", stream);
            const Quantized<e4m3> w = w_codes();
            if (fp8.scaling() == Fp8Scaling::mx) {
                quantize_blocks(w, nullptr, nullptr, weight(), outputs_, inputs_, Fp8Scaling::mx, false,
                                again ? QuantizePass::replay : fp8.train_pass(), stream);
            } else {
                const auto cast = [&](QuantizePass pass) {
                    quantize<e4m3>(w, nullptr, nullptr, weight(), nullptr, outputs_, inputs_, false, pass, stream);
                };
                if (!again) {
                    cast(QuantizePass::measure);
                    fp8.set_scale(tensors_, Fp8Role::w, stream);
                }
                cast(again ? QuantizePass::replay : fp8.write_pass());
            }
        }
        layers_.weights_.release(weight_.unit, stream);
    }
}

// Of codes that have travelled: for dgrad, when it comes to it for the first time.
template <class Real>
void Linear<Real>::transpose_weight([[maybe_unused]] stream_t stream) {
    if constexpr (kCanBeFp8<Real>) {
        const Quantized<e4m3> w = w_codes();
        transpose_codes(w.transposed, w.row, outputs_, inputs_, stream);
        w_transposed_->holder = tensors_;
    }
}

template <class Real>
void Linear<Real>::leave_fp8(stream_t stream) {
    is_fp8_ = false;
    if (!setup_.from_working_copy) layers_.weights_.leave_fp8(weight_.unit, weight_.tensor, stream);
}

// ---- one layer: forward and backward -------------------------------------------------------------------------------

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
Operand<Real> Linear<Real>::input(const Real* value, [[maybe_unused]] const Real* low,
                                  [[maybe_unused]] const Pass& pass) {
    if constexpr (kCanBeFp8<Real>) {
        if (is_fp8_ && layers_.block_scales()) {
            const Quantized<e4m3> codes = x_codes(pass);
            const bool leaves_traces = pass.kind == PassKind::training;
            quantize_blocks(codes, nullptr, nullptr, value, pass.N(), inputs_, layers_.fp8_->scaling(), false,
                            leaves_traces ? layers_.fp8_->train_pass() : QuantizePass::replay, pass.stream);
            return {nullptr, codes};
        }
        if (is_fp8_)
            return cast_input(pass, [&](const Quantized<e4m3>& codes, QuantizePass cast) {
                quantize<e4m3>(codes, nullptr, nullptr, value, low, pass.N(), inputs_, false, cast, pass.stream);
            });
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

template <class Real>
void Linear<Real>::forward(Real* out, const Operand<Real>& x, const Pass& pass) {
    const Real* bias = bias_ ? layers_.weights_.weight(*bias_) : nullptr;
    if constexpr (kCanBeFp8<Real>)
        if (is_fp8_) {
            check_holds(layers_.x_, "x");
            const Quantized<e4m3> w = w_codes();
            return layers_.matmul_.forward_fp8(out, x.codes.row, x.codes.row_scale_inv(), w.row, w.row_scale_inv(),
                                               bias, pass.N(), inputs_, outputs_, pass.stream);
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
    if (w_transposed_->holder != tensors_) transpose_weight(pass.stream);
    const Quantized<e4m3> w = w_codes();
    layers_.matmul_.wgrad_fp8(layers_.gradients_.gradient(weight_), codes.transposed, codes.transposed_scale_inv(),
                              x.codes.transposed, x.codes.transposed_scale_inv(), N, inputs_, outputs_, pass.accumulate,
                              pass.stream);
    layers_.matmul_.dgrad_fp8(dinp, codes.row, codes.row_scale_inv(), w.transposed, w.transposed_scale_inv(), N,
                              inputs_, outputs_, pass.stream);
}

template class LinearLayers<float>;
template class LinearLayers<bf16>;
template class Linear<float>;
template class Linear<bf16>;

}  // namespace llmc
