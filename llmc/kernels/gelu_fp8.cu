// Quantizing GELU: see gelu_fp8.h; the kernel's body is in quantize_tile.cuh.
#include "llmc/kernels/gelu_fp8.h"

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/quantize_tile.cuh"

namespace llmc {

// ---- forward -------------------------------------------------------------------------------------------------------

struct GeluValues {
    const bf16* inp;
    int C;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 inp;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        inputs.inp.load(inp + static_cast<size_t>(row) * C + column);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        inputs.inp.get(x);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) x[h][i] = gelu(x[h][i]);
        }
    }
};

static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    gelu_forward_fp8_kernel(e4m3* row, e4m3* transposed, Fp8State* state, const bf16* inp, int N, int C,
                            QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, GeluValues{inp, C}, N, C, pass);
}

void gelu_forward_fp8(const Quantized<e4m3>& to, const bf16* inp, int N, int C, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<e4m3> l("gelu_forward_fp8", to, nullptr, nullptr, N, C, pass, stream);
    host::launch_or_loop<gelu_forward_fp8_kernel, host::gelu_forward_fp8>(
        KernelVariant::host_activation, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        state_access(to.state, pass), in(inp, l.elements), N, C, pass);
}

// ---- backward ------------------------------------------------------------------------------------------------------

struct GeluGradientValues {
    const bf16 *dout, *inp;
    int C;
    static constexpr bool kSumsColumns = true;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 dout, inp;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        const size_t at = static_cast<size_t>(row) * C + column;
        inputs.dout.load(dout + at);
        inputs.inp.load(inp + at);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float dout_values[2][8];
        inputs.dout.get(dout_values);
        inputs.inp.get(x);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) x[h][i] = dout_values[h][i] * gelu_derivative(x[h][i]);
        }
    }
};

template <class F8>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    gelu_backward_fp8_kernel(F8* row, F8* transposed, float* parts, Fp8State* state, const bf16* dout, const bf16* inp,
                             int N, int C, QuantizePass pass) {
    quantize_tile(row, transposed, parts, state, GeluGradientValues{dout, inp, C}, N, C, pass);
}

template <class F8>
void gelu_backward_fp8(const Quantized<F8>& to, float* dbias, float* scratch, const bf16* dout, const bf16* inp, int N,
                       int C, bool accumulate, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<F8> l("gelu_backward_fp8", to, dbias, scratch, N, C, pass, stream);
    host::launch_or_loop<gelu_backward_fp8_kernel<F8>, host::gelu_backward_fp8<F8>>(
        KernelVariant::host_activation, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        out(l.parts, l.part_elements), state_access(to.state, pass), in(dout, l.elements), in(inp, l.elements), N, C,
        pass);
    l.finish_bias(dbias, C, accumulate);
}

template void gelu_backward_fp8(const Quantized<e4m3>&, float*, float*, const bf16*, const bf16*, int, int, bool,
                                QuantizePass, stream_t);
template void gelu_backward_fp8(const Quantized<e5m2>&, float*, float*, const bf16*, const bf16*, int, int, bool,
                                QuantizePass, stream_t);

}  // namespace llmc
