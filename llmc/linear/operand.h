// What a linear layer's products read, handed from the kernel that made it to the layer as a value: an activation, or
// the gradient of an output, in the activations' own type or as FP8 codes.
#pragma once
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// A layer's input x (N, C). Codes that are kept for backward are valid until the next training pass; the others until
// the next operand is made (Linear checks that).
template <class Real>
struct Operand {
    // nullptr where it exists in FP8 alone. Beside codes it is for probes, which share memory for it: see
    // Linear::remember_input().
    const Real* value = nullptr;
    Quantized<e4m3> codes;  // of a layer in FP8
};

// The gradient of a layer's output, dout (N, OC), and how far its producer has got with what the layer needs of it. The
// codes and partial sums are the layers' own (LinearLayers).
template <class Real>
struct Gradient {
    enum class Codes {
        none,      // only the value
        measured,  // the scale is set, the codes are not written
        written,
    };
    enum class Bias {
        none,   // the bias gradient is still to be made of the value
        parts,  // column sums of some rows each
        done,   // in the gradients
    };
    Real* value = nullptr;  // nullptr where it exists in FP8 alone
    Codes codes = Codes::none;
    Bias bias = Bias::none;
};

}  // namespace llmc
