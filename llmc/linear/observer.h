// The probe of layers in FP8 (--fp8-probe-every). Linear layers call the observer around their products. It computes
// each product again in BF16, from the values before the cast, and adds up the differences, which Fp8Laboratory keeps.
// It does not change the layers' results.
#pragma once
#include "llmc/linear/linear.h"

namespace llmc {

class LinearObserver {
public:
    using Layer = Linear<bf16>;
    explicit LinearObserver(LinearLayers<bf16>& layers) : layers_(layers), fp8_(*layers.fp8()) {}

    // In runs with a probe, plans memory for a layer in FP8, when the layer plans its own.
    void plan(const Layer& layer, Arena& activations);

    // True if producers must also write the values of inputs and of outputs' gradients.
    bool wants_values(const Pass& pass) const { return laboratory().probes() && pass.kind == PassKind::training; }
    // Memory for the values of the layer's input (N, C), which would otherwise only exist in FP8.
    bf16* input_values(const Layer& layer);

    void after_forward(const Layer& layer, const bf16* out, const Operand<bf16>& x, const bf16* bias, const Pass& pass);
    // dinp (N, C) and dweight (OC, C), the sum over micro-steps if pass.accumulate, are complete.
    void after_backward(const Layer& layer, const bf16* dinp, const float* dweight, const Gradient<bf16>& dout,
                        const Operand<bf16>& x, const Pass& pass);

private:
    Fp8Laboratory& laboratory() const { return fp8_.laboratory(); }
    const bf16* probed_weight(const Layer& layer, stream_t stream);
    // Compares the FP8 result with result_.
    template <class T>
    void note_difference(const Layer& layer, Fp8Probed product, const T* made, size_t n, const Pass& pass);

    LinearLayers<bf16>& layers_;
    Fp8Registry& fp8_;
    // Layers use this memory in turns.
    double* parts_ = nullptr;    // see add_differences()
    bf16* x_ = nullptr;          // (N, C)
    int x_of_ = kNoLayer;        // the layer whose input is in x_, as a number in the registry
    bf16* weight_ = nullptr;     // (OC, C)
    float* master_ = nullptr;    // (OC, C), collected from the ranks
    char* workspace_ = nullptr;  // for collecting them
    char* result_ = nullptr;     // the BF16 product, in BF16 or FP32
};

}  // namespace llmc
