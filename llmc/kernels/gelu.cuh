// GELU (tanh form) and its derivative for one value, shared by the kernels here and by those that quantize their
// output.
//
// With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh u) is sigmoid(2u): one exponential, one division, and no
// cancellation for negative x.
#pragma once
#include "llmc/device/math.cuh"

namespace llmc {

// sigmoid(2u). Infinite exponentials give 0, as they should.
LLMC_HD float gelu_gate(float x) {
    constexpr float kSlope = -2.3022081985f;  // -2 sqrt(2/pi) log2(e)
    constexpr float kCubic = -0.1029432393f;  // 0.044715 * kSlope
    const float e = exp2_fast(x * (kSlope + kCubic * x * x));
    return divide_fast(1.0f, 1.0f + e);
}

LLMC_HD float gelu(float x) { return x * gelu_gate(x); }

LLMC_HD float gelu_derivative(float x) {
    const float gate = gelu_gate(x);
    const float slope = 1.5957691216f + 0.2140644488f * x * x;  // d(2u)/dx
    return gate + x * gate * (1.0f - gate) * slope;
}

}  // namespace llmc
