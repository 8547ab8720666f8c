// Formulas of the activations and their derivatives, one value at a time. The plain kernels (activation.cu) and the
// quantizing ones (activation_fp8.cu) share them; host/vectors.h has the same arithmetic for vectors.
#pragma once
#include "llmc/device/math.cuh"

namespace llmc {

// GELU, tanh form. With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh u) is sigmoid(2u): one exponential, one
// division, and no cancellation for negative x.
struct Gelu {
    static constexpr bool kSumsBiasGradient = true;    // as sums_bias_gradient() says
    LLMC_HD static float round(float x) { return x; }  // the FP8 kernels cast the FP32 value

    // sigmoid(2u). An infinite exponential gives 0, which is the limit.
    LLMC_HD static float gate(float x) {
        constexpr float kSlope = -2.3022081985f;  // -2 sqrt(2/pi) log2(e)
        constexpr float kCubic = -0.1029432393f;  // 0.044715 * kSlope
        const float e = exp2_fast(x * (kSlope + kCubic * x * x));
        return divide_fast(1.0f, 1.0f + e);
    }
    LLMC_HD static float value(float x) { return x * gate(x); }
    LLMC_HD static float derivative(float x) {
        const float g = gate(x);
        const float slope = 1.5957691216f + 0.2140644488f * x * x;  // d(2u)/dx
        return g + x * g * (1.0f - g) * slope;
    }
};

// ReLU squared.
struct Relu2 {
    static constexpr bool kSumsBiasGradient = false;
    // The FP8 kernels round to BF16 first, as the plain ones do.
    LLMC_HD static float round(float x) { return to_float(to_bf16(x)); }

    // NaN stays NaN, so that the step is skipped.
    LLMC_HD static float relu(float x) { return x < 0.0f ? 0.0f : x; }
    LLMC_HD static float value(float x) { return relu(x) * relu(x); }
    LLMC_HD static float derivative(float x) { return 2.0f * relu(x); }
};

// SwiGLU has two inputs: silu(gate) * up, with silu(x) = x * sigmoid(x).
struct Swiglu {
    // An infinite exponential gives 0, which is the limit.
    LLMC_HD static float sigmoid(float x) { return divide_fast(1.0f, 1.0f + exp_fast(-x)); }
    LLMC_HD static float value(float gate, float up) { return up * (gate * sigmoid(gate)); }
    LLMC_HD static void gradients(float dout, float gate, float up, float& dgate, float& dup) {
        const float s = sigmoid(gate);
        dgate = dout * up * (s + gate * s * (1.0f - s));
        dup = dout * (gate * s);
    }
};

}  // namespace llmc
