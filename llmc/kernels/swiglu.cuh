// SiLU and its derivative for one value, shared by SwiGLU's plain kernels and those that quantize their output.
#pragma once
#include "llmc/device/math.cuh"

namespace llmc {

// Infinite exponentials give 0, as they should.
LLMC_HD float sigmoid(float x) { return divide_fast(1.0f, 1.0f + exp_fast(-x)); }

LLMC_HD float silu(float x) { return x * sigmoid(x); }

// With both gradients: of gate and of up.
LLMC_HD void swiglu_gradients(float dout, float gate, float up, float& dgate, float& dup) {
    const float s = sigmoid(gate);
    dgate = dout * up * (s + gate * s * (1.0f - s));
    dup = dout * (gate * s);
}

}  // namespace llmc
