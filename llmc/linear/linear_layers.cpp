// What the linear layers of a model have in common: see linear.h.
#include <algorithm>

#include "llmc/device/trace.h"
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/linear/linear.h"

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

}  // namespace

template <class Real>
LinearLayers<Real>::LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const Fp8Config* fp8)
    : weights_(weights),
      gradients_(gradients),
      matmul_(matmul),
      fp8_(fp8 ? std::make_unique<Fp8Registry>(*fp8, weights.layout().comm()) : nullptr) {
    if (!fp8) return;
    if constexpr (kCanBeFp8<Real>) {
        codes_ = std::make_unique<WeightCodes>(weights, *fp8_);
        observers_ = make_observers(*this);
    } else {
        throw Error(ExitCode::failure, "a model in FP32 has no FP8 layers");
    }
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
        if (layer->name() == kHeadLayer)
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
                    strprintf("--fp8-recipe %s: %d tokens per micro-batch (batch * seq) are not a multiple of %d, the "
                              "length of a block, which the weight gradients of %s need; change --batch or --seq, or "
                              "use --fp8-recipe current or delayed",
                              name, rows, length, enumeration(odd_rows).c_str()));
}

template <class Real>
void LinearLayers<Real>::allocate(stream_t stream) {
    if (operand_type<Real> != OperandType::fp32)  // whose products need no memory of their own
        for (const Matmul::LinearShape& s : shapes()) matmul_.reserve(s.N, s.C, s.OC, s.fp8);
    if (!fp8_) return;
    activations_.allocate();
    fp8_->allocate(stream);
    codes_->allocate();
}

template <class Real>
std::vector<Matmul::LinearShape> LinearLayers<Real>::shapes() const {
    std::vector<Matmul::LinearShape> shapes;
    for (const Linear<Real>* layer : layers_) {
        const Matmul::LinearShape shape{layer->rows(), layer->inputs(), layer->outputs(), layer->is_fp8()};
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
        if (!layer->is_fp8() || fp8_->falls_back() || fp8_->config().probe)
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
std::vector<Fp8Fallback> LinearLayers<Real>::fall_back(stream_t stream) {
    if (!fp8_) return {};
    const std::vector<Fp8Fallback> left = fp8_->take_fallbacks();
    for (Linear<Real>* layer : layers_)
        if (layer->is_fp8() && fp8_->has_left(layer->tensors_)) layer->leave_fp8(stream);
    return left;
}

template class LinearLayers<float>;
template class LinearLayers<bf16>;

}  // namespace llmc
