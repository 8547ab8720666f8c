// The linear layer: out = x * w^T + bias, its gradients, and in FP8 the codes that its products read.
//
// A layer with N tokens, C inputs and OC outputs computes three products per micro-step:
//
//   forward   out (N, OC)  = x (N, C) * w (OC, C)^T + bias    x and w in E4M3; may add another matrix
//   dgrad     dinp (N, C)  = dout (N, OC) * w (OC, C)         dout in E5M2 or E4M3
//   wgrad     dw (OC, C)  += dout (N, OC)^T * x (N, C)        sums in FP32
//
// The head's forward product stays in BF16 even if the head is in FP8: rounding its operands would change every logit,
// and so the loss. Its two gradients are in FP8.
//
// A value is stored as the code fp8(value * scale), and a product multiplies its sums by the inverse scales. The scale
// follows from the tensor's largest magnitude, the amax. With delayed scaling that is the amax of earlier steps, so the
// kernel that computes an operand casts it at once. With current scaling it is the tensor's own, so the kernel runs
// twice: it measures, the scale is set, and it writes. Recipes with block scales cast values from memory.
//
// The kernel that produces an operand writes it where the layer says. input_target() returns an Operand that is still
// to be written: memory for codes and the pass of the kernel's next run, or memory for values if the kernel is not to
// cast. accept() ends a run of a kernel that casts. It applies the recipe: after a run that only measured it sets the
// scale and returns false, and the next run writes. A gradient of the output comes in the same way.
//
//   Operand<Real> x = fc.input_target(pass);
//   if (x.casts()) {
//       do norm_forward_fp8(..., x.codes, ..., x.cast_pass, stream);
//       while (!fc.accept(x, pass));
//   } else {
//       norm_forward(..., x.value, ..., stream);
//       x = fc.input(x.value, nullptr, pass);
//   }
//   fc.forward(out, x, pass);
//
// Products on Hopper read both operands along the dimension that they sum over. So each of the three tensors x, w and
// dout is stored row-major and transposed. Row codes of x and both layouts of dout live until the next product, in
// memory that all layers share. Transposed codes of x are kept for the weight gradient, or shared if backward
// recomputes them. Each pass writes only the layouts that it reads. WeightCodes holds the codes of w.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "llmc/fp8/registry.h"
#include "llmc/linear/matmul.h"
#include "llmc/linear/weight_codes.h"
#include "llmc/shard/gradients.h"
#include "llmc/shard/weights.h"

namespace llmc {

// FP8 layers belong to BF16 models. An FP32 model compiles without their code.
template <class Real>
constexpr bool kCanBeFp8 = std::is_same_v<Real, bf16>;

// ---- values that layers pass to each other --------------------------------------------------------------------------

// One pass through a layer.
struct LayerPass {
    PassKind kind;
    int N;              // rows of the input
    bool accumulate;    // gradients are added to earlier ones
    float* scratch;     // for partial sums of gradients, shared by the whole model
    unsigned* tickets;  // 0 between kernels (kernels/hopper/tickets.cuh), shared by the whole model
    stream_t stream;
};

// A layer's input x (N, C). Codes that are kept for backward are valid until the next training pass, others until the
// next operand is made. Linear checks that.
template <class Real>
struct Operand {
    Real* value = nullptr;       // nullptr if the input only exists in FP8
    Quantized<e4m3> codes = {};  // set if the layer is in FP8
    QuantizePass cast_pass = QuantizePass::replay;

    bool casts() const { return codes.state != nullptr; }
    // True if the kernel that casts runs once.
    bool casts_at_once() const { return casts() && cast_pass != QuantizePass::measure; }
};

// The gradient of a layer's output, dout (N, OC), and how much of the layer's work its producer has done.
template <class Real>
struct Gradient {
    enum class Codes {
        none,    // only values; the layer casts them if it is in FP8
        wanted,  // the next run writes them: the producer's, or the layer's from the values
        written,
    };
    Real* value = nullptr;  // nullptr if it only exists in FP8
    Codes state = Codes::none;
    std::variant<Quantized<e5m2>, Quantized<e4m3>> codes = {};
    QuantizePass cast_pass = QuantizePass::replay;

    bool bias_done = false;             // the bias gradient is computed, too
    const float* bias_parts = nullptr;  // or column sums, from which finish_bias_gradient() computes it

    bool casts() const { return state == Codes::wanted; }
    // The codes that a producer other than the loss writes, or nullptr if it writes values.
    const Quantized<e5m2>* e5m2_codes() const { return casts() ? std::get_if<Quantized<e5m2>>(&codes) : nullptr; }
    // True if the kernel that casts runs once.
    bool casts_at_once() const { return e5m2_codes() && cast_pass != QuantizePass::measure; }
};

// ---- layers ---------------------------------------------------------------------------------------------------------

template <class Real>
class Linear;
template <class Real>
class GeluProducts;

// The parts that a model's linear layers share: matrix products, the FP8 recipe, and memory for codes. Each layer adds
// itself when it is constructed; then comes finish_planning().
template <class Real>
class LinearLayers {
public:
    // `values`: the arena for inputs that are not only codes. `fp8`: the recipe of the layers whose weights have codes
    // (ParameterTensor::codes), in BF16 models only; or nullptr.
    LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, Arena& values, const Fp8Config* fp8);
    ~LinearLayers();

    // Throws if the recipe does not support this model or sharding.
    void finish_planning();
    void allocate(stream_t stream);
    size_t activation_bytes() const { return activations_.bytes(); }
    size_t weight_bytes() const { return codes_ ? codes_->bytes() : 0; }
    // Shapes for Matmul::reserve().
    std::vector<Matmul::LinearShape> shapes() const;
    // The products of a micro-step of N tokens, with the kinds of layers that need them. Includes the BF16 products of
    // layers that may leave FP8.
    ProductUses products(int N) const;

    Fp8Registry* fp8() { return fp8_.get(); }  // nullptr without FP8
    const std::vector<Linear<Real>*>& all() const { return layers_; }
    Linear<Real>& find(const std::string& name) const {
        for (Linear<Real>* layer : layers_)
            if (layer->name() == name) return *layer;
        throw Error(ExitCode::failure, "no linear layer is called " + name);
    }
    // FP8 products need a multiple of this many tokens.
    int token_multiple() const {
        if (!fp8_) return 1;
        return block_scales() ? block_length(fp8_->scaling()) : 16;
    }
    // Number of FP8 products that a training micro-step of N tokens should make with the layers that are in FP8 now.
    int64_t fp8_products(int N) const;
    // True if the kernels that produce output gradients cast them to FP8, namely to E5M2 with a scale per tensor. Other
    // output gradients are cast from their values, except for the loss's.
    bool gradients_are_cast() const { return fp8_ && fp8_->config().grad == Fp8Grad::e5m2; }

    // See WeightCodes::prepare(), memory() and write_again(). Without FP8, the same for working copies alone.
    void prepare_weights(stream_t stream);
    std::vector<NamedMemory> weight_codes() const { return codes_ ? codes_->memory() : std::vector<NamedMemory>(); }
    void make_weights_again(stream_t stream);
    // Call after optimizer step `step`, after Fp8Registry::finish_step() and before prepare_weights(). Moves layers out
    // of FP8: those that lose too many values, which it returns for the log, and all of them once `step` is the last in
    // FP8.
    std::vector<Fp8Fallback> leave_fp8(int64_t step, stream_t stream);

    // Every backward of a layer outside of FP8 first calls the observer with its operands. An empty observer ends that.
    using BackwardObserver = std::function<void(Linear<Real>& layer, const Operand<Real>& x, const Gradient<Real>& dout,
                                                const LayerPass& pass)>;
    void observe(const BackwardObserver& observer) { backward_observer_ = observer; }

private:
    friend class Linear<Real>;
    friend class GeluProducts<Real>;
    // One layout of an operand.
    struct Codes {
        uint8_t* codes = nullptr;
        char* scales = nullptr;  // only for recipes with block scales
    };
    // Memory that layers use in turns.
    struct Shared {
        Codes row, transposed;
        int holder = kNoLayer;  // the layer whose codes are here, as a number in the registry
    };

    bool block_scales() const { return fp8_ && fp8_->has_block_scales(); }

    Weights<Real>& weights_;
    Gradients& gradients_;
    Matmul& matmul_;
    Arena& values_;
    const std::unique_ptr<Fp8Registry> fp8_;
    std::unique_ptr<WeightCodes> codes_;  // nullptr without FP8
    std::vector<Linear<Real>*> layers_;
    BackwardObserver backward_observer_;
    Arena activations_{MemoryKind::activations};
    Shared x_;     // row codes of x
    Shared dout_;  // both layouts of dout, in the format of gradients
    // Transposed codes of x, by layer, or by kind of layer if backward recomputes the input.
    std::map<std::string, Shared> x_transposed_;
    bf16* source_ = nullptr;  // values of an input whose producer does not cast, from which the codes are made
};

// How a layer is used in its block.
struct LinearSetup {
    std::string kind;              // layers of one kind share memory that is not kept until backward
    bool recomputed = false;       // backward recomputes the input
    bool runs_again = false;       // and the output, which later layers of the block read
    bool input_in_memory = false;  // the block has memory for the input's values
    bool has_addend = false;       // forward() adds the output to the residual stream
};

template <class Real>
class Linear {
public:
    // Reads the tensors name.weight (OC, C) and, if there is one, name.bias (OC). `weight` names another tensor for the
    // weight. Inputs have at most `rows` rows at a time.
    Linear(LinearLayers<Real>& layers, const std::string& name, int rows, const LinearSetup& setup,
           const std::string& weight = "");
    Linear(Linear&&) = delete;

    const std::string& name() const { return name_; }
    const Matmul::LinearShape& shape() const { return shape_; }  // most rows N, C, OC
    bool is_fp8() const { return llmc::is_fp8(shape_.type); }
    const ParameterTable::Place& weight_place() const { return weight_; }

    // ---- forward

    // Tells the producer of the input x (N, C) where to write it.
    Operand<Real> input_target(const LayerPass& pass);
    // Call after each run of a kernel that casts to a target. Returns true if the codes are written. Otherwise the
    // kernel must run again, with the target's next pass.
    bool accept(Operand<Real>& x, const LayerPass& pass) {
        return layers_.fp8_->finish_run(x.cast_pass, number_, Fp8Role::x, pass.kind, pass.stream);
    }
    // The input from values in memory. `low` (N, C): their rounding errors, or nullptr.
    Operand<Real> input(Real* value, const Real* low, const LayerPass& pass);
    // out (N, OC) = x * weight^T + bias + addend (N, OC), which may be nullptr and must not be `out`.
    void forward(Real* out, const Operand<Real>& x, const LayerPass& pass, const Real* addend = nullptr);

    // ---- backward, of training passes

    // Tells the producer of the output's gradient where to cast it, if casts().
    Gradient<Real> gradient_target(const LayerPass& pass);
    // As for inputs, but a producer that also writes values runs only once, because backward() can cast those.
    bool accept(Gradient<Real>& dout, const LayerPass& pass);
    // The gradient of the bias, for producers that compute it; nullptr without a bias.
    float* dbias() { return bias_ ? layers_.gradients_.gradient(*bias_) : nullptr; }
    // Gradients of the weight and the bias, and dinp (N, C).
    void backward(Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const LayerPass& pass);

private:
    friend class LinearLayers<Real>;
    friend class GeluProducts<Real>;
    using Shared = typename LinearLayers<Real>::Shared;
    using Codes = typename LinearLayers<Real>::Codes;
    using GradientCodes = decltype(Gradient<Real>::codes);

    void plan_codes();
    bool forward_is_fp8() const { return is_fp8() && forward_codes_; }
    // True if the producer of the input writes values, which are then cast.
    bool input_goes_through_source() const { return is_fp8() && layers_.block_scales(); }
    Quantized<e4m3> x_codes(const LayerPass& pass);
    GradientCodes gradient_codes();
    GradientCodes codes_of(const Gradient<Real>& dout) {
        return dout.state == Gradient<Real>::Codes::none ? gradient_codes() : dout.codes;
    }
    const Real* weight() const { return layers_.weights_.weight(weight_); }
    void leave_fp8(stream_t stream) {
        shape_.type = operand_type<Real>;
        layers_.codes_->leave(number_, stream);
    }
    void check_holds(const Shared& shared, const char* what) const;
    // Casts values to `codes`, and with dbias also computes the bias gradient.
    template <class F8>
    void cast(const Quantized<F8>& codes, Fp8Role role, QuantizePass cast_pass, const Real* value, const Real* low,
              float* dbias, const LayerPass& pass);
    // Gradients of the weight and the bias, of a layer outside of FP8.
    void wgrad(const Gradient<Real>& dout, const Operand<Real>& x, const LayerPass& pass);
    // Casts dout and computes the bias gradient, unless dout's producer has done so. Then computes dweight.
    template <class F8>
    void cast_and_wgrad(const Quantized<F8>& codes, const Gradient<Real>& dout, const Operand<Real>& x,
                        const LayerPass& pass);

    LinearLayers<Real>& layers_;
    const std::string name_;
    const LinearSetup setup_;
    ParameterTable::Place weight_;
    std::optional<ParameterTable::Place> bias_;
    Matmul::LinearShape shape_;
    bool forward_codes_ = false;      // while in FP8: forward is, too; false: only the two gradient products are
    int number_ = kNoLayer;           // in Fp8Registry, if the layer was ever in FP8
    Real* values_ = nullptr;          // (N, C)   the input, if its producer writes values that a product reads
    Shared* x_transposed_ = nullptr;  // in LinearLayers::x_transposed_
};

}  // namespace llmc
