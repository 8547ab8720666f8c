// The values that layers pass to each other, and the instruments that watch those.
//
// Passes, operands and gradients are values: the kernel that computes an operand returns it, in the activations' own
// type or as FP8 codes. Observers are called around the casts and products of every linear layer in FP8. They do
// not change a layer's results. Fp8Laboratory keeps their measurements.
//
//   Outliers    in steps that are recorded: measures the kurtosis of inputs and the alignment of gates
//   Probe       --fp8-probe-every: computes each product again in BF16, from the values before the cast, and adds up
//               the difference
#pragma once
#include <memory>
#include <vector>

#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/shard/arena.h"

namespace llmc {

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
    // nullptr if the input only exists in FP8. An observer's memory may hold values that exist next to codes.
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

template <class Real>
class Linear;
template <class Real>
class LinearLayers;

template <class Real>
class LinearObserver {
public:
    using Layer = Linear<Real>;
    virtual ~LinearObserver() = default;

    // Plans memory for a layer in FP8, when the layer plans its own.
    virtual void plan(const Layer&, Arena& /*activations*/) {}

    // True if producers must also write the values of this layer's input and of its output's gradient.
    virtual bool wants_values(const Layer&, const Pass&) const { return false; }
    // Returns memory for the values of an input (N, C) that would otherwise only exist in FP8, or nullptr if this
    // observer does not want them.
    virtual Real* input_values(const Layer&, const Pass&) { return nullptr; }

    // An input (N, C) that will be cast to FP8. Only called if the values exist: with block scales, and before
    // smoothing.
    virtual void before_cast(const Layer&, const Real* /*x*/, const Pass&) {}
    virtual void before_forward(const Layer&, const Operand<Real>& /*x*/, const Pass&) {}
    virtual void after_forward(const Layer&, const Real* /*out*/, const Operand<Real>& /*x*/, const Real* /*bias*/,
                               const Pass&) {}
    // dinp (N, C) and dweight (OC, C), the sum over micro-steps if pass.accumulate, are complete.
    virtual void after_backward(const Layer&, const Real* /*dinp*/, const float* /*dweight*/,
                                const Gradient<Real>& /*dout*/, const Operand<Real>& /*x*/, const Pass&) {}
};

// The observers that a model with this recipe needs, in the order in which they are called.
std::vector<std::unique_ptr<LinearObserver<bf16>>> make_observers(LinearLayers<bf16>& layers);

}  // namespace llmc
