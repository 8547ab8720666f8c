// Activations that quantize their output (activation.h): quantize_tile_kernel() around producers of their values.
#include "llmc/kernels/activation.h"
#include "llmc/kernels/quantize_tile.cuh"

namespace llmc {

void activation_forward_fp8(Activation f, const Quantized<e4m3>& to, const bf16* inp, int N, int F, QuantizePass pass,
                            stream_t stream) {
    const auto cast = [&](const char* launcher, const auto& values) {
        quantize_tiles(launcher, to, nullptr, nullptr, values, N, F, false, pass, stream);
    };
    switch (f) {
        case Activation::gelu:
            return cast("gelu_forward_fp8", ActivationValues<Gelu>{inp});
        case Activation::relu2:
            return cast("relu2_forward_fp8", ActivationValues<Relu2>{inp});
        case Activation::swiglu:
            return cast("swiglu_forward_fp8", SwigluValues{inp});
    }
}

void activation_backward_fp8(Activation f, const Quantized<e5m2>& to, const BiasGradient& bias, const bf16* dout,
                             const bf16* inp, int N, int F, QuantizePass pass, stream_t stream) {
    const auto cast = [&](const char* launcher, const auto& values, int columns, float* dbias) {
        quantize_tiles(launcher, to, dbias, bias.scratch, values, N, columns, bias.accumulate, pass, stream);
    };
    switch (f) {
        case Activation::gelu:
            return cast("gelu_backward_fp8", ActivationGradientValues<Gelu>{dout, inp}, F, bias.dbias);
        case Activation::relu2:
            return cast("relu2_backward_fp8", ActivationGradientValues<Relu2>{dout, inp}, F, nullptr);
        case Activation::swiglu:
            check_quantize("swiglu_backward_fp8", to.state, N, F);
            return cast("swiglu_backward_fp8", SwigluGradientValues{dout, inp}, 2 * F, nullptr);
    }
}

}  // namespace llmc
