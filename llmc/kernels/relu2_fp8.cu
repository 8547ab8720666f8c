// Quantizing ReLU squared: see relu2_fp8.h; the kernel's body is in quantize_tile.cuh.
#include "llmc/kernels/relu2_fp8.h"

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/quantize_tile.cuh"
#include "llmc/kernels/relu2.cuh"

namespace llmc {

// ReLU squared of inp, or with a dout its gradient.
template <bool Backward>
struct Relu2Values {
    const bf16 *dout, *inp;
    int C;
    static constexpr bool kSumsColumns = false;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 dout, inp;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        const size_t at = static_cast<size_t>(row) * C + column;
        inputs.inp.load(inp + at);
        if constexpr (Backward) inputs.dout.load(dout + at);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        float d[2][8];
        inputs.inp.get(x);
        if constexpr (Backward) inputs.dout.get(d);
        LLMC_UNROLL
        for (int h = 0; h < 2; h++) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++)
                x[h][i] = to_float(to_bf16(Backward ? d[h][i] * relu2_derivative(x[h][i]) : relu2(x[h][i])));
        }
    }
};

template <class F8, bool Backward>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    relu2_fp8_kernel(F8* row, F8* transposed, Fp8State* state, const bf16* dout, const bf16* inp, int N, int C,
                     QuantizePass pass) {
    quantize_tile(row, transposed, nullptr, state, Relu2Values<Backward>{dout, inp, C}, N, C, pass);
}

void relu2_forward_fp8(const Quantized<e4m3>& to, const bf16* inp, int N, int C, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<e4m3> l("relu2_forward_fp8", to, nullptr, nullptr, N, C, pass, stream);
    host::launch_or_loop<relu2_fp8_kernel<e4m3, false>, host::relu2_fp8<e4m3, false>>(
        KernelVariant::host_activation, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        state_access(to.state, pass), in(static_cast<const bf16*>(nullptr), 0), in(inp, l.elements), N, C, pass);
}

template <class F8>
void relu2_backward_fp8(const Quantized<F8>& to, const bf16* dout, const bf16* inp, int N, int C, QuantizePass pass,
                        stream_t stream) {
    const QuantizeLaunch<F8> l("relu2_backward_fp8", to, nullptr, nullptr, N, C, pass, stream);
    host::launch_or_loop<relu2_fp8_kernel<F8, true>, host::relu2_fp8<F8, true>>(
        KernelVariant::host_activation, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        state_access(to.state, pass), in(dout, l.elements), in(inp, l.elements), N, C, pass);
}

template void relu2_backward_fp8(const Quantized<e4m3>&, const bf16*, const bf16*, int, int, QuantizePass, stream_t);
template void relu2_backward_fp8(const Quantized<e5m2>&, const bf16*, const bf16*, int, int, QuantizePass, stream_t);

}  // namespace llmc
