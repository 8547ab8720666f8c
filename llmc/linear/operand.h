// The values that layers pass to each other: the current pass, and operands of products, in the activations' own type
// or as FP8 codes. The kernel that computes an operand returns it as a value.
#pragma once
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

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
    void* row = nullptr;  // written row codes, if they lie outside of LinearLayers' memory
};

}  // namespace llmc
