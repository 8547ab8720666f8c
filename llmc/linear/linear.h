// The linear layer: out = x * weight^T + bias, its gradients, and in FP8 the codes that its products read.
//
// An operand of a product is made by the kernel that computes it, which casts it to FP8 on the way: what this layer
// wants of it depends on the recipe (once, or measured first and then written), so producers are handed to the layer as
// a pair of calls, and come back as an Operand or a Gradient. The next call takes that as an argument:
//
//   const Operand<Real> x = fc.input(ln2, pass, [&](Real* out) { layernorm_forward(out, ...); },
//                                    [&](auto codes, QuantizePass cast) { layernorm_forward_fp8(codes, ..., cast); });
//   fc.forward(out, x, pass);
//
// A layer in FP8 has x, w and dout, each stored row-major and transposed, because products on Hopper take both operands
// along their inner dimension. Row codes of x and both layouts of dout live until the next product, in memory that all
// layers share; transposed codes of x are kept for the weight gradient, or shared where backward makes them again.
//
// A probed micro-step (Fp8Registry::probe()) makes the three products of each layer in FP8 once more in BF16, from what
// their operands were cast from, and sums up how far the two are apart. Nothing that training reads changes.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "llmc/fp8/registry.h"
#include "llmc/linear/matmul.h"
#include "llmc/linear/operand.h"
#include "llmc/linear/pass.h"
#include "llmc/linear/weight_codes.h"
#include "llmc/shard/gradients.h"
#include "llmc/shard/weights.h"

namespace llmc {

// FP8 layers belong to BF16 models. An FP32 model compiles without their code.
template <class Real>
constexpr bool kCanBeFp8 = std::is_same_v<Real, bf16>;

template <class Real>
class Linear;

// What the linear layers of a model have in common: the products, the FP8 recipe, and memory for codes. Layers enter it
// when they are made; then finish_planning().
template <class Real>
class LinearLayers {
public:
    // `fp8`: the recipe of the layers whose weights have codes (ParameterTensor::codes), in BF16 models only; or
    // nullptr.
    LinearLayers(Weights<Real>& weights, Gradients& gradients, Matmul& matmul, const Fp8Config* fp8);

    void finish_planning();
    void allocate(stream_t stream);
    size_t activation_bytes() const { return activations_.bytes(); }
    size_t weight_bytes() const { return weight_codes_ ? weight_codes_->bytes() : 0; }
    // What Matmul has to be prepared for.
    std::vector<Matmul::LinearShape> shapes() const;
    // The products of a micro-step of N tokens, with the kinds of the layers that make them; also those of layers that
    // may leave FP8, and of a probe.
    std::map<Product, std::set<std::string>> products(int N) const;

    // nullptr: no FP8
    Fp8Registry* fp8() { return fp8_.get(); }
    const std::vector<Linear<Real>*>& all() const { return layers_; }
    Linear<Real>& find(const std::string& name) const;
    int fp8_count() const;       // layers in FP8 now
    int token_multiple() const;  // what FP8 products want of N

    // See WeightCodes::prepare(), memory() and write_again(). Without FP8, the same for working copies alone.
    void prepare_weights(stream_t stream);
    std::vector<NamedMemory> weight_codes() const;
    void make_weights_again(stream_t stream);
    // Once a step, after Fp8Registry::finish_step() and before prepare_weights(): layers that have to leave FP8 do.
    // What was decided on, for the log.
    std::vector<Fp8Fallback> fall_back(stream_t stream);

private:
    friend class Linear<Real>;
    static constexpr int kNobody = -1;
    // Memory that layers use in turns, and whose codes are in it.
    struct Shared {
        uint8_t *row = nullptr, *transposed = nullptr;
        char *row_scales = nullptr, *transposed_scales = nullptr;
        int holder = kNobody;  // a layer's number in the registry
    };

    // Of a probe; what all layers use in turns.
    struct Probe {
        bf16 *x = nullptr, *weight = nullptr;  // (N, C), (OC, C)
        char* result = nullptr;                // of a product in BF16
        float* master = nullptr;               // (OC, C), where no rank has it whole
        char* workspace = nullptr;             // of its collection
        int holder = kNobody;                  // whose input is in x
    };

    bool block_scales() const { return fp8_ && fp8_->has_block_scales(); }
    void check_recipe() const;

    Weights<Real>& weights_;
    Gradients& gradients_;
    Matmul& matmul_;
    const std::unique_ptr<Fp8Registry> fp8_;
    std::unique_ptr<WeightCodes> weight_codes_;  // nullptr without FP8
    std::vector<Linear<Real>*> layers_;
    Arena activations_{MemoryKind::activations};
    Shared x_;                                  // row codes of x; with block scales `source` is beside them
    Shared dout_;                               // in the format of gradients
    std::map<std::string, Shared> recomputed_;  // by kind: transposed codes of inputs that backward makes again
    bf16* source_ = nullptr;          // what producers that do not cast write, and both layouts are quantized from
    float* bias_parts_ = nullptr;     // of the bias gradient, from the norm that makes the output's gradient
    double* moment_parts_ = nullptr;  // see add_moments(), add_differences()
    float* cosines_ = nullptr;        // see gate_alignment()
    Probe probe_;
};

// What a layer is, beside its parameters.
struct LinearSetup {
    std::string kind;                 // layers of one kind share the memory of what is not kept
    bool recomputed = false;          // backward makes the input again
    bool input_from_values = false;   // the input's producer casts nothing
    bool gradient_from_norm = false;  // a norm's backward makes the output's gradient, and casts it
    bool gated = false;               // its outputs are a gate and as many values that it opens
    bool smooth = false;              // its input's channels get factors, if the recipe has any
};

template <class Real>
class Linear {
public:
    // Tensors name.weight (OC, C) and, where there is one, name.bias (OC); or `weight`, a tensor of another name. At
    // most `rows` rows of input at a time.
    Linear(LinearLayers<Real>& layers, const std::string& name, int rows, const LinearSetup& setup,
           const std::string& weight = "");
    Linear(const Linear&) = delete;
    Linear& operator=(const Linear&) = delete;

    const std::string& name() const { return name_; }
    int inputs() const { return inputs_; }    // C
    int outputs() const { return outputs_; }  // OC
    int rows() const { return rows_; }
    bool is_fp8() const { return is_fp8_; }
    bool is_recomputed() const { return setup_.recomputed; }
    const Real* weight() const { return layers_.weights_.weight(weight_); }
    // Whether its input exists in the activations' type, now or after the layer has left FP8.
    bool reads_values() const { return !is_fp8_ || layers_.fp8_->falls_back(); }

    // ---- forward

    // The input x (N, C), as its producer makes it: write(out) into `value`, or cast(codes, quantize_pass) as often as
    // the recipe wants it, or write(out) in between. `value` may be nullptr unless reads_values().
    template <class Write, class Cast>
    Operand<Real> input(Real* value, const Pass& pass, Write&& write, Cast&& cast) {
        if constexpr (kCanBeFp8<Real>) {
            if (is_fp8_) {
                Operand<Real> x;
                remember_input(x, pass, write);  // first: what else it writes is as the cast leaves it
                x.codes = make_codes(pass, write, cast);
                return x;
            }
        }
        write(value);
        return {value, {}};
    }
    // For a probe of the weight gradient, before backward() reads x: its values again.
    template <class Write>
    void remember_input(Operand<Real>& x, const Pass& pass, Write&& write) {
        if constexpr (kCanBeFp8<Real>)
            if (probes(pass)) {
                write(layers_.probe_.x);
                layers_.probe_.holder = tensors_;
                x.value = layers_.probe_.x;
            }
    }
    // Whether this pass makes the products in BF16 as well, for which an Operand or a Gradient has its value too.
    bool probes(const Pass& pass) const { return is_fp8_ && layers_.fp8_->probes() && pass.kind == PassKind::training; }
    // The input as it is; `low`: what rounding has lost of it, or nullptr.
    Operand<Real> input(const Real* value, const Real* low, const Pass& pass);
    // Whether a producer runs but once, so that it need not read its own inputs twice: then cast_input() may take the
    // place of write and input().
    bool casts_at_once(const Pass& pass) const {
        return is_fp8_ && !layers_.block_scales() && (pass.kind == PassKind::recompute || layers_.fp8_->uses_history());
    }
    template <class Cast>
    Operand<Real> cast_input(const Pass& pass, Cast&& cast) {
        const Quantized<e4m3> codes = x_codes(pass);
        fill(Fp8Role::x, pass.kind, pass.stream, [&](QuantizePass quantize) { cast(codes, quantize); });
        return {nullptr, codes};
    }
    // out (N, OC), N = pass.N()
    void forward(Real* out, const Operand<Real>& x, const Pass& pass);

    // ---- backward, of training passes

    // The gradient of the output from a producer that can cast it, and makes the bias gradient too: cast(codes,
    // quantize_pass), where codes are Quantized<e4m3> or <e5m2>.
    template <class Cast>
    Gradient<Real> cast_gradient(const Pass& pass, Cast&& cast) {
        if constexpr (kCanBeFp8<Real>)
            with_gradient_codes([&](auto codes) {
                fill(Fp8Role::dout, PassKind::training, pass.stream,
                     [&](QuantizePass quantize) { cast(codes, quantize); });
            });
        return {nullptr, Gradient<Real>::Codes::written, Gradient<Real>::Bias::done};
    }
    // Whether cast_gradient() is to be had for producers that write `value` themselves.
    bool casts_gradients() const { return is_fp8_ && !layers_.block_scales(); }
    // From a norm, which runs but once, writes `value` as well, and leaves column sums: cast(codes, bias_parts,
    // quantize_pass).
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
    float* dbias() { return bias_ ? layers_.gradients_.gradient(*bias_) : nullptr; }
    // Gradients of the weight and the bias, and dinp (N, C).
    void backward(Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const Pass& pass);

private:
    friend class LinearLayers<Real>;
    using Shared = typename LinearLayers<Real>::Shared;

    void plan_codes();
    void plan_scales();
    void plan_probe();
    bool is_smooth() const { return is_fp8_ && layers_.fp8_->is_smooth(tensors_); }
    void smooth_source(const Pass& pass);
    bool input_goes_through_source() const { return setup_.input_from_values || layers_.block_scales() || is_smooth(); }
    Quantized<e4m3> x_codes(const Pass& pass);
    void leave_fp8(stream_t stream);
    // Of an input whose producer is given as to input().
    template <class Write, class Cast>
    Quantized<e4m3> make_codes(const Pass& pass, Write&& write, Cast&& cast) {
        if (!input_goes_through_source()) return cast_input(pass, cast).codes;
        write(layers_.source_);
        if (is_smooth()) smooth_source(pass);
        return input(layers_.source_, nullptr, pass).codes;
    }
    void check_holds(const Shared& shared, const char* what) const;
    const bf16* probed_weight(stream_t stream);
    template <class T>
    void note_difference(Fp8Probed product, const T* made, size_t n, const Pass& pass);
    void probe_forward(const Real* out, const Operand<Real>& x, const Real* bias, const Pass& pass);
    void probe_backward(const Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x, const Pass& pass);
    template <class T>
    void note_outliers(const T* x, const Fp8State* state, const Pass& pass);
    void note_alignment(stream_t stream);
    template <class F8>
    void backward_fp8(const Quantized<F8>& codes, Real* dinp, const Gradient<Real>& dout, const Operand<Real>& x,
                      const Pass& pass);

    // Runs produce(quantize_pass) as often as the recipe wants it.
    template <class F>
    void fill(Fp8Role role, PassKind kind, stream_t stream, F&& produce) {
        Fp8Registry& fp8 = *layers_.fp8_;
        const bool evaluation = kind == PassKind::evaluation;
        if (kind == PassKind::recompute || (evaluation && fp8.uses_history())) {
            produce(QuantizePass::replay);
        } else if (fp8.uses_history()) {
            produce(fp8.train_pass());
        } else {
            produce(QuantizePass::measure);
            if (evaluation)
                fp8.set_evaluation_scale(tensors_, role, stream);
            else
                fp8.set_scale(tensors_, role, stream);
            produce(evaluation ? QuantizePass::replay : fp8.write_pass());
        }
    }
    // The only place where gradients are E4M3 or E5M2.
    template <class F>
    void with_gradient_codes(F&& f) {
        Shared& d = layers_.dout_;
        d.holder = tensors_;
        Fp8State* state = layers_.fp8_->state(tensors_, Fp8Role::dout);
        const auto codes = [&]<class F8>(F8) {
            return Quantized<F8>{reinterpret_cast<F8*>(d.row), reinterpret_cast<F8*>(d.transposed), state, d.row_scales,
                                 d.transposed_scales};
        };
        if (layers_.fp8_->config().e4m3_gradients)
            f(codes(e4m3{}));
        else
            f(codes(e5m2{}));
    }

    LinearLayers<Real>& layers_;
    const std::string name_;
    const int rows_;
    const LinearSetup setup_;
    ParameterTable::Place weight_;
    std::optional<ParameterTable::Place> bias_;
    int inputs_ = 0, outputs_ = 0;
    bool is_fp8_ = false;
    int tensors_ = -1;  // its number in the registry

    Shared own_x_;                    // transposed codes of x that are kept for backward
    Shared* x_transposed_ = nullptr;  // `own_x_`, or memory that the layers of a kind share
};

}  // namespace llmc
