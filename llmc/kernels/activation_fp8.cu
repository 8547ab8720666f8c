// Activations that quantize their output (activation.h). Each kernel is quantize_tile() (quantize_tile.cuh) around a
// producer that computes the values.
#include "llmc/kernels/activation.cuh"
#include "llmc/kernels/activation.h"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/quantize_tile.cuh"

namespace llmc {

// ---- GELU and ReLU squared -----------------------------------------------------------------------------------------

// The activation of inp, or its gradient, dout * f'(inp). Forward, dout is not read.
template <class Formula, bool kBackward>
struct ActivationValues {
    const bf16 *dout, *inp;
    int C;
    static constexpr bool kSumsColumns = kBackward && Formula::kSumsBiasGradient;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 dout, inp;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        const size_t at = static_cast<size_t>(row) * C + column;
        if constexpr (kBackward) inputs.dout.load(dout + at);
        inputs.inp.load(inp + at);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float d[2][8];
        if constexpr (kBackward) inputs.dout.get(d);
        inputs.inp.get(x);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 8; i++) {
                x[h][i] = kBackward ? d[h][i] * Formula::derivative(x[h][i]) : Formula::value(x[h][i]);
                if constexpr (Formula::kRoundsBeforeCast) x[h][i] = to_float(to_bf16(x[h][i]));
            }
        }
    }
};

static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    gelu_forward_fp8_kernel(e4m3* row, e4m3* transposed, Fp8State* state, const bf16* inp, int N, int C,
                            QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, ActivationValues<Gelu, false>{nullptr, inp, C}, N, C, pass);
}

template <class F8>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    gelu_backward_fp8_kernel(F8* row, F8* transposed, float* parts, Fp8State* state, const bf16* dout, const bf16* inp,
                             int N, int C, QuantizePass pass) {
    quantize_tile(row, transposed, parts, state, ActivationValues<Gelu, true>{dout, inp, C}, N, C, pass);
}

template <class F8, bool kBackward>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    relu2_fp8_kernel(F8* row, F8* transposed, Fp8State* state, const bf16* dout, const bf16* inp, int N, int C,
                     QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, ActivationValues<Relu2, kBackward>{dout, inp, C}, N, C, pass);
}

// ---- SwiGLU forward ------------------------------------------------------------------------------------------------

struct SwigluValues {
    const bf16* inp;
    int F;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 gate, up;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        const bf16* const gate = inp + static_cast<size_t>(row) * 2 * F + column;
        inputs.gate.load(gate);
        inputs.up.load(gate + F);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float gate[2][8];
        inputs.gate.get(gate);
        inputs.up.get(x);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 8; i++) x[h][i] = to_float(to_bf16(Swiglu::value(gate[h][i], x[h][i])));
    }
};

static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    swiglu_forward_fp8_kernel(e4m3* row, e4m3* transposed, Fp8State* state, const bf16* inp, int N, int F,
                              QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, SwigluValues{inp, F}, N, F, pass);
}

// ---- SwiGLU backward: a block has the same columns of dgate and of dup ---------------------------------------------

struct SwigluGradientValues {
    const bf16 *dout, *inp;
    int F;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 2;
    struct Inputs {
        Bf16x16 dout, gate, up;
        bool is_up;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        inputs.is_up = column >= F;
        const int own = inputs.is_up ? column - F : column;
        const bf16* const gate = inp + static_cast<size_t>(row) * 2 * F + own;
        inputs.dout.load(dout + static_cast<size_t>(row) * F + own);
        inputs.gate.load(gate);
        inputs.up.load(gate + F);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float gate[2][8], up[2][8];
        inputs.dout.get(x);
        inputs.gate.get(gate);
        inputs.up.get(up);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 8; i++) {
                float dgate, dup;
                Swiglu::gradients(x[h][i], gate[h][i], up[h][i], dgate, dup);
                x[h][i] = to_float(to_bf16(inputs.is_up ? dup : dgate));
            }
        }
    }
};

template <class F8>
static __global__ void __launch_bounds__(kQuantizeThreads)
    swiglu_backward_fp8_kernel(F8* row, F8* transposed, Fp8State* state, const bf16* dout, const bf16* inp, int N,
                               int F, QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, SwigluGradientValues{dout, inp, F}, N, 2 * F, pass);
}

// ---- launchers -----------------------------------------------------------------------------------------------------

// A kernel that writes (N, columns) from these inputs. N and F are its last parameters before the pass.
template <auto kernel, auto loop, class F8, class... In>
static void cast_values(const char* launcher, const Quantized<F8>& to, int N, int columns, int F, QuantizePass pass,
                        stream_t stream, const In&... inputs) {
    const QuantizeLaunch<F8> l(launcher, to, nullptr, nullptr, N, columns, pass, stream);
    host::launch_or_loop<kernel, loop>(l.config, out(l.row, l.elements), out(l.transposed, l.elements),
                                       state_access(to.state, pass), inputs..., N, F, pass);
}

void activation_forward_fp8(Activation f, const Quantized<e4m3>& to, const bf16* inp, int N, int F, QuantizePass pass,
                            stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    const bf16* const no_gradient = nullptr;
    switch (f) {
        case Activation::gelu:
            return cast_values<gelu_forward_fp8_kernel, host::gelu_forward_fp8>("gelu_forward_fp8", to, N, F, F, pass,
                                                                                stream, in(inp, n));
        case Activation::relu2:
            return cast_values<relu2_fp8_kernel<e4m3, false>, host::activation_fp8<Relu2, e4m3, false>>(
                "relu2_forward_fp8", to, N, F, F, pass, stream, in(no_gradient, n), in(inp, n));
        case Activation::swiglu:
            return cast_values<swiglu_forward_fp8_kernel, host::swiglu_forward_fp8>("swiglu_forward_fp8", to, N, F, F,
                                                                                    pass, stream, in(inp, 2 * n));
    }
}

template <class F8>
static void gelu_backward_fp8(const Quantized<F8>& to, const BiasGradient& bias, const bf16* dout, const bf16* inp,
                              int N, int F, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<F8> l("gelu_backward_fp8", to, bias.dbias, bias.scratch, N, F, pass, stream);
    host::launch_or_loop<gelu_backward_fp8_kernel<F8>, host::gelu_backward_fp8<F8>>(
        l.config, out(l.row, l.elements), out(l.transposed, l.elements), out(l.parts, l.part_elements),
        state_access(to.state, pass), in(dout, l.elements), in(inp, l.elements), N, F, pass);
    l.finish_bias(bias.dbias, F, bias.accumulate);
}

template <class F8>
void activation_backward_fp8(Activation f, const Quantized<F8>& to, const BiasGradient& bias, const bf16* dout,
                             const bf16* inp, int N, int F, QuantizePass pass, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    switch (f) {
        case Activation::gelu:
            return gelu_backward_fp8(to, bias, dout, inp, N, F, pass, stream);
        case Activation::relu2:
            return cast_values<relu2_fp8_kernel<F8, true>, host::activation_fp8<Relu2, F8, true>>(
                "relu2_backward_fp8", to, N, F, F, pass, stream, in(dout, n), in(inp, n));
        case Activation::swiglu:
            check_quantize("swiglu_backward_fp8", to.state, N, F);
            return cast_values<swiglu_backward_fp8_kernel<F8>, host::swiglu_backward_fp8<F8>>(
                "swiglu_backward_fp8", to, N, 2 * F, F, pass, stream, in(dout, n), in(inp, 2 * n));
    }
}

LLMC_INSTANTIATE_BOTH(activation_backward_fp8, e4m3, e5m2);

}  // namespace llmc
