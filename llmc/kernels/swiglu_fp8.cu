// Quantizing SwiGLU: see swiglu_fp8.h; the kernel's body is in quantize_tile.cuh.
#include "llmc/kernels/swiglu_fp8.h"

#include "llmc/device/registers.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/quantize_tile.cuh"
#include "llmc/kernels/swiglu.cuh"

namespace llmc {

// ---- forward -------------------------------------------------------------------------------------------------------

struct SwigluValues {
    const bf16* inp;
    int F;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 gate, up;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        forget(row);  // or the places of all rows are kept
        const bf16* const gate = inp + static_cast<size_t>(row) * 2 * F + column;
        inputs.gate.load(gate);
        inputs.up.load(gate + F);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float gate[2][8];
        inputs.gate.get(gate);
        inputs.up.get(x);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) x[h][i] = to_float(to_bf16(x[h][i] * silu(gate[h][i])));
        }
    }
};

static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    swiglu_forward_fp8_kernel(e4m3* row, e4m3* transposed, Fp8State* state, const bf16* inp, int N, int F,
                              QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, SwigluValues{inp, F}, N, F, pass);
}

void swiglu_forward_fp8(const Quantized<e4m3>& to, const bf16* inp, int N, int F, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<e4m3> l("swiglu_forward_fp8", to, nullptr, nullptr, N, F, pass, stream);
    host::launch_or_loop<swiglu_forward_fp8_kernel, host::swiglu_forward_fp8>(
        KernelVariant::host_activation, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        state_access(to.state, pass), in(inp, 2 * l.elements), N, F, pass);
}

// ---- backward: a block has the same columns of dgate and of dup ----------------------------------------------------

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
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) {
                float dgate, dup;
                swiglu_gradients(x[h][i], gate[h][i], up[h][i], dgate, dup);
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

template <class F8>
void swiglu_backward_fp8(const Quantized<F8>& to, const bf16* dout, const bf16* inp, int N, int F, QuantizePass pass,
                         stream_t stream) {
    check_quantize("swiglu_backward_fp8", to.state, N, F);
    const QuantizeLaunch<F8> l("swiglu_backward_fp8", to, nullptr, nullptr, N, 2 * F, pass, stream);
    host::launch_or_loop<swiglu_backward_fp8_kernel<F8>, host::swiglu_backward_fp8<F8>>(
        KernelVariant::host_activation, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        state_access(to.state, pass), in(dout, l.elements / 2), in(inp, l.elements), N, F, pass);
}

template void swiglu_backward_fp8(const Quantized<e4m3>&, const bf16*, const bf16*, int, int, QuantizePass, stream_t);
template void swiglu_backward_fp8(const Quantized<e5m2>&, const bf16*, const bf16*, int, int, QuantizePass, stream_t);

}  // namespace llmc
