// The linear layer: out = x * w^T + bias, its gradients, and in FP8 the codes that its products read.
//
// A layer with N tokens, C inputs and OC outputs computes three products per micro-step:
//
//   forward   out (N, OC)  = x (N, C) * w (OC, C)^T + bias    x and w in E4M3
//   dgrad     dinp (N, C)  = dout (N, OC) * w (OC, C)         dout in E5M2
//   wgrad     dw (OC, C)  += dout (N, OC)^T * x (N, C)        sums in FP32
//
// A value is stored as the code fp8(value * scale), and a product multiplies its sums by the inverse scales. The scale
// follows from the tensor's largest magnitude, the amax. With delayed scaling that is the amax of earlier steps, so the
// kernel that computes an operand casts it at once. With current scaling it is the tensor's own, so the kernel runs
// twice: it measures, the scale is set, and it writes. Recipes with block scales cast values from memory.
//
// Therefore the kernel that computes an operand is passed to the layer as a pair of calls. The layer runs them as the
// recipe needs and returns an Operand (or a Gradient), which its product takes:
//
//   const Operand<Real> x = fc.input(ln2, pass, [&](Real* out) { norm_forward(..., out, ...); },
//                                    [&](auto codes, QuantizePass cast) { norm_forward_fp8(..., codes, ..., cast); });
//   fc.forward(out, x, pass);
//
// So x and dout come to a layer in these ways:
//
//   input(value, pass, write, cast)         from a kernel that can write values or codes
//   input(value, low, pass)                 from values in memory
//   cast_input(pass, cast)                  from a kernel that writes codes in one run; needs casts_at_once()
//   Gradient{value}                         dout from values in memory
//   cast_gradient(pass, cast)               from a kernel that can write codes; needs casts_gradients()
//   gradient_from_norm(value, pass, cast)   from a norm that writes values and codes; needs takes_gradient_from_norm()
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
#include <set>
#include <string>
#include <type_traits>
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

// Only training changes amaxes, histories and counters.
enum class PassKind { training, recompute, evaluation };

// One way through a model, forward or backward.
struct Pass {
    PassKind kind;
    int B, T;         // sequences, and tokens of each
    bool accumulate;  // gradients are added to earlier ones
    float* scratch;   // for partial sums of gradients, shared by the whole model
    stream_t stream;
    const int* documents = nullptr;  // (B, T), see mark_documents(); nullptr: attention takes a row as one document
    float* max_logits = nullptr;     // (layers, NH), which training raises to attention's largest logits; or nullptr

    int N() const { return B * T; }
    Pass as(PassKind other) const {
        Pass pass = *this;
        pass.kind = other;
        return pass;
    }
    // The same over one sequence of this many tokens.
    Pass over(int tokens) const {
        Pass pass = *this;
        pass.B = 1;
        pass.T = tokens;
        return pass;
    }
};

// A layer's input x (N, C). Codes that are kept for backward are valid until the next training pass, others until the
// next operand is made. Linear checks that.
template <class Real>
struct Operand {
    // nullptr if the input only exists in FP8.
    const Real* value = nullptr;
    Quantized<e4m3> codes;  // set if the layer is in FP8
};

// The gradient of a layer's output, dout (N, OC), and how much of the layer's work its producer has done. Codes and
// partial sums are in memory of LinearLayers.
template <class Real>
struct Gradient {
    enum class Codes {
        none,      // only the value exists
        measured,  // the scale is set, the codes are not written
        written,
    };
    enum class Bias {
        none,   // the bias gradient must be computed from the value
        parts,  // column sums of some rows each
        done,   // added to the gradients
    };
    Real* value = nullptr;  // nullptr if it only exists in FP8
    Codes codes = Codes::none;
    Bias bias = Bias::none;
    void* row = nullptr;  // written row codes, if they are outside of LinearLayers' memory
};

// ---- layers ---------------------------------------------------------------------------------------------------------

template <class Real>
class Linear;

// The parts that a model's linear layers share: matrix products, the FP8 recipe, and memory for codes. Each layer adds
// itself when it is constructed; then comes finish_planning().
template <class Real>
class LinearLayers {
public:
    // `fp8`: the recipe of the layers whose weights have codes (ParameterTensor::codes), in BF16 models only; or
    // nullptr.
    LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const Fp8Config* fp8);
    ~LinearLayers();

    void finish_planning();
    void allocate(stream_t stream);
    size_t activation_bytes() const { return activations_.bytes(); }
    size_t weight_bytes() const { return codes_ ? codes_->bytes() : 0; }
    // Shapes for Matmul::reserve().
    std::vector<Matmul::LinearShape> shapes() const;
    // The products of a micro-step of N tokens, with the kinds of layers that need them. Includes the BF16 products of
    // layers that may leave FP8.
    std::map<Product, std::set<std::string>> products(int N) const;

    Fp8Registry* fp8() { return fp8_.get(); }  // nullptr without FP8
    const std::vector<Linear<Real>*>& all() const { return layers_; }
    Linear<Real>& find(const std::string& name) const;
    int token_multiple() const;  // FP8 products need a multiple of this many tokens

    // See WeightCodes::prepare(), memory() and write_again(). Without FP8, the same for working copies alone.
    void prepare_weights(stream_t stream);
    std::vector<NamedMemory> weight_codes() const;
    void make_weights_again(stream_t stream);
    // Call after optimizer step `step`, after Fp8Registry::finish_step() and before prepare_weights(). Moves layers out
    // of FP8: those that lose too many values, which it returns for the log, and all of them once `step` is the last in
    // FP8.
    std::vector<Fp8Fallback> leave_fp8(int64_t step, stream_t stream);

    // Every backward of a layer outside of FP8 first calls the observer with its operands. An empty observer ends that.
    using BackwardObserver =
        std::function<void(Linear<Real>& layer, const Operand<Real>& x, const Gradient<Real>& dout, const Pass& pass)>;
    void observe(const BackwardObserver& observer) { backward_observer_ = observer; }

private:
    friend class Linear<Real>;
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
    void check_recipe() const;

    Weights<Real>& weights_;
    Gradients& gradients_;
    Matmul& matmul_;
    const std::unique_ptr<Fp8Registry> fp8_;
    std::unique_ptr<WeightCodes> codes_;  // nullptr without FP8
    std::vector<Linear<Real>*> layers_;
    BackwardObserver backward_observer_;
    Arena activations_{MemoryKind::activations};
    Shared x_;     // row codes of x
    Shared dout_;  // both layouts of dout, in the format of gradients
    // Transposed codes of x, by layer, or by kind of layer if backward recomputes the input.
    std::map<std::string, Shared> x_transposed_;
    bf16* source_ = nullptr;       // values of an input whose producer does not cast, from which the codes are made
    float* bias_parts_ = nullptr;  // partial sums of a bias gradient, from the norm that computes the output's gradient
};

// How a layer is used in its block.
struct LinearSetup {
    std::string kind;                 // layers of one kind share memory that is not kept until backward
    bool recomputed = false;          // backward recomputes the input
    bool runs_again = false;          // and the output, which later layers of the block read
    bool input_from_values = false;   // the kernel that produces the input does not cast it
    bool gradient_from_norm = false;  // a norm's backward computes the output's gradient, and casts it
};

template <class Real>
class Linear {
public:
    // Reads the tensors name.weight (OC, C) and, if there is one, name.bias (OC). `weight` names another tensor for the
    // weight. Inputs have at most `rows` rows at a time.
    Linear(LinearLayers<Real>& layers, const std::string& name, int rows, const LinearSetup& setup,
           const std::string& weight = "");
    Linear(const Linear&) = delete;
    Linear& operator=(const Linear&) = delete;

    const std::string& name() const { return name_; }
    int inputs() const { return inputs_; }    // C
    int outputs() const { return outputs_; }  // OC
    int rows() const { return rows_; }
    bool is_fp8() const { return is_fp8_; }
    // False with --fp8-grad bf16: forward multiplies codes, dgrad and wgrad the values and the weight's working copy.
    bool backward_is_fp8() const { return is_fp8_ && layers_.fp8_->config().grad != Fp8Grad::bf16; }
    const LinearSetup& setup() const { return setup_; }
    int fp8_number() const { return tensors_; }  // in Fp8Registry; -1 if the layer never was in FP8
    const ParameterTable::Place& weight_place() const { return weight_; }
    const Real* weight() const { return layers_.weights_.weight(weight_); }
    // True if the layer reads its input as values, in one of its products now or after it has left FP8.
    bool reads_values() const { return !backward_is_fp8() || layers_.fp8_->layers_may_leave(); }

    // ---- forward

    // The input x (N, C) from its producer: write(out) writes values, cast(codes, quantize_pass) writes codes. The
    // layer calls one of them, as often as the recipe needs. Values are written to `value`, which is nullptr unless
    // reads_values(). If the backward is in BF16, it reads these values, and codes are cast from them.
    template <class Write, class Cast>
    Operand<Real> input(Real* value, const Pass& pass, Write&& write, Cast&& cast) {
        if constexpr (kCanBeFp8<Real>)
            if (backward_is_fp8()) {
                if (!input_goes_through_source()) return cast_input(pass, cast);
                write(layers_.source_);
                return {nullptr, input(layers_.source_, nullptr, pass).codes};
            }
        write(value);
        return input(value, nullptr, pass);
    }
    // The input from values in memory. `low` (N, C): their rounding errors, or nullptr.
    Operand<Real> input(const Real* value, const Real* low, const Pass& pass);
    // True if a producer runs only once in this pass and can write codes itself, with cast_input().
    bool casts_at_once(const Pass& pass) const {
        return is_fp8_ && !layers_.block_scales() && (pass.kind == PassKind::recompute || layers_.fp8_->uses_history());
    }
    template <class Cast>
    Operand<Real> cast_input(const Pass& pass, Cast&& cast) {
        const Quantized<e4m3> codes = x_codes(pass);
        cast_by_recipe(Fp8Role::x, pass.kind, pass.stream, [&](QuantizePass quantize) { cast(codes, quantize); });
        return {nullptr, codes};
    }
    // out (N, OC), N = pass.N()
    void forward(Real* out, const Operand<Real>& x, const Pass& pass);

    // ---- backward, of training passes

    // The gradient of the output from a producer that casts it and computes the bias gradient: cast(codes,
    // quantize_pass), where codes are Quantized<e4m3> or <e5m2>.
    template <class Cast>
    Gradient<Real> cast_gradient(const Pass& pass, Cast&& cast) {
        if constexpr (kCanBeFp8<Real>)
            with_gradient_codes([&](auto codes) {
                cast_by_recipe(Fp8Role::dout, PassKind::training, pass.stream,
                               [&](QuantizePass quantize) { cast(codes, quantize); });
            });
        return {nullptr, Gradient<Real>::Codes::written, Gradient<Real>::Bias::done};
    }
    // True if the producer of the output gradient may call cast_gradient().
    bool casts_gradients() const { return backward_is_fp8() && !layers_.block_scales(); }
    // True if a norm that computes the output gradient must call gradient_from_norm(). The norm runs once, also
    // writes `value`, and leaves column sums for the bias gradient: cast(codes, bias_parts, quantize_pass).
    bool takes_gradient_from_norm() const;
    template <class Cast>
    Gradient<Real> gradient_from_norm(Real* value, const Pass& pass, Cast&& cast) {
        using G = Gradient<Real>;
        if constexpr (kCanBeFp8<Real>) {
            const bool at_once = layers_.fp8_->uses_history();
            with_gradient_codes([&](auto codes) {
                cast(codes, layers_.bias_parts_, at_once ? layers_.fp8_->train_pass() : QuantizePass::measure);
            });
            if (at_once) return {value, G::Codes::written, G::Bias::parts};
            layers_.fp8_->set_scale(tensors_, Fp8Role::dout, pass.stream);
            return {value, G::Codes::measured, G::Bias::none};
        }
        return {value};
    }

    // ---- with GELU, in one kernel (kernels/hopper/matmul_gelu.h)

    // True if forward_gelu() and next.backward_gelu() may compute this layer's output h together with GELU(h), the
    // input of `next`, and the gradient of h.
    bool multiplies_with_gelu(const Linear& next, const Pass& pass) const;
    // forward() to h, and next.cast_input(). Row codes go to `row` (N, OC bytes), because this layer's input occupies
    // the memory of next's.
    Operand<Real> forward_gelu(Real* h, void* row, Linear& next, const Operand<Real>& x, const Pass& pass);
    // backward() of a layer whose input is GELU(h), and before.cast_gradient() of h's gradient instead of dinp.
    // `before` computed h (N, C). Row codes go to `row` (N, C bytes), because dout occupies the memory of before's.
    Gradient<Real> backward_gelu(const Real* h, void* row, Linear& before, const Gradient<Real>& dout,
                                 const Operand<Real>& x, const Pass& pass);

    float* dbias() { return bias_ ? layers_.gradients_.gradient(*bias_) : nullptr; }
    // Gradients of the weight and the bias, and dinp (N, C).
    void backward(Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const Pass& pass);

private:
    friend class LinearLayers<Real>;
    using Shared = typename LinearLayers<Real>::Shared;
    using Codes = typename LinearLayers<Real>::Codes;

    void plan_codes();
    // True if the producer of the input writes values, which are then cast.
    bool input_goes_through_source() const {
        return backward_is_fp8() && (setup_.input_from_values || layers_.block_scales());
    }
    // True if any product reads codes of this pass's input.
    bool needs_codes(const Pass& pass) const {
        return backward_is_fp8() || (is_fp8_ && (pass.kind != PassKind::recompute || setup_.runs_again));
    }
    Quantized<e4m3> x_codes(const Pass& pass);
    void leave_fp8(stream_t stream);
    void check_holds(const Shared& shared, const char* what) const;
    // Casts dout and computes the bias gradient, unless dout's producer has done so. Then computes dweight.
    template <class F8>
    void cast_and_wgrad(const Quantized<F8>& codes, const Gradient<Real>& dout, const Operand<Real>& x,
                        const Pass& pass);
    template <class F8>
    void backward_fp8(const Quantized<F8>& codes, Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x,
                      const Pass& pass);

    // Calls cast(quantize_pass) as often as the recipe needs.
    template <class Cast>
    void cast_by_recipe(Fp8Role role, PassKind kind, stream_t stream, Cast&& cast) {
        Fp8Registry& fp8 = *layers_.fp8_;
        const bool evaluation = kind == PassKind::evaluation;
        if (kind == PassKind::recompute) return cast(QuantizePass::replay);  // with forward's scale
        if (fp8.uses_history()) return cast(evaluation ? QuantizePass::replay : fp8.train_pass());
        cast(QuantizePass::measure);  // current scaling
        if (evaluation)
            fp8.set_evaluation_scale(tensors_, role, stream);
        else
            fp8.set_scale(tensors_, role, stream);
        cast(evaluation ? QuantizePass::replay : fp8.write_pass());
    }
    // Calls use(codes) with the memory of dout's codes, as Quantized<e5m2> or <e4m3>.
    template <class Use>
    void with_gradient_codes(Use&& use) {
        if (layers_.fp8_->config().grad == Fp8Grad::e5m2)
            use(gradient_codes<e5m2>());
        else
            use(gradient_codes<e4m3>());
    }
    template <class F8>
    Quantized<F8> gradient_codes() {
        Shared& d = layers_.dout_;
        d.holder = tensors_;
        return {reinterpret_cast<F8*>(d.row.codes), reinterpret_cast<F8*>(d.transposed.codes),
                layers_.fp8_->state(tensors_, Fp8Role::dout), d.row.scales, d.transposed.scales};
    }

    LinearLayers<Real>& layers_;
    const std::string name_;
    const int rows_;
    const LinearSetup setup_;
    ParameterTable::Place weight_;
    std::optional<ParameterTable::Place> bias_;
    int inputs_ = 0, outputs_ = 0;
    bool is_fp8_ = false;
    int tensors_ = -1;                // this layer's number in the registry
    Shared* x_transposed_ = nullptr;  // in LinearLayers::x_transposed_
};

}  // namespace llmc
