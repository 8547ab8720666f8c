// The formulas of activation.cuh for vectors.
#pragma once
#include "llmc/kernels/activation.cuh"
#include "llmc/kernels/host/vectors.h"

namespace llmc::host {

LLMC_INLINE Floats gelu_gate_of(Floats x) {
    return 1.0f / (1.0f + exp2_of(x * (-2.3022081985f + -0.1029432393f * x * x)));
}
LLMC_INLINE Floats value_of(Gelu, Floats x) { return x * gelu_gate_of(x); }
LLMC_INLINE Floats derivative_of(Gelu, Floats x) {
    const Floats gate = gelu_gate_of(x), slope = 1.5957691216f + 0.2140644488f * x * x;
    return gate + x * gate * (1.0f - gate) * slope;
}

LLMC_INLINE Floats relu_of(Floats x) { return x < 0.0f ? Floats{} : x; }
LLMC_INLINE Floats value_of(Relu2, Floats x) { return relu_of(x) * relu_of(x); }
LLMC_INLINE Floats derivative_of(Relu2, Floats x) { return 2.0f * relu_of(x); }

LLMC_INLINE Floats sigmoid_of(Floats x) { return 1.0f / (1.0f + exp2_of(-x * 1.4426950408889634f)); }
LLMC_INLINE Floats swiglu_of(Floats gate, Floats up) { return up * (gate * sigmoid_of(gate)); }
LLMC_INLINE Floats swiglu_gate_gradient(Floats dout, Floats gate, Floats up) {
    const Floats s = sigmoid_of(gate);
    return dout * up * (s + gate * s * (1.0f - s));
}
LLMC_INLINE Floats swiglu_up_gradient(Floats dout, Floats gate) { return dout * (gate * sigmoid_of(gate)); }

}  // namespace llmc::host
