// Plain quantization: see quantize.h; the kernel's body is in quantize_tile.cuh.
#include "llmc/kernels/quantize.h"

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/quantize_tile.cuh"

namespace llmc {

size_t quantize_scratch(int N, int C) { return static_cast<size_t>(div_up(N, kTileRows)) * C; }

// ---- activations and gradients -------------------------------------------------------------------------------------

struct Bf16Values {
    const bf16 *inp, *inp_low;
    int C;
    static constexpr bool kSumsColumns = true;
    static constexpr int kHalves = 1;
    struct Inputs {
        Bf16x16 inp, low;
    };
    LLMC_DEVICE void load(Inputs& inputs, int row, int column) const {
        const size_t at = static_cast<size_t>(row) * C + column;
        inputs.inp.load(inp + at);
        if (inp_low != nullptr) inputs.low.load(inp_low + at);
    }
    LLMC_DEVICE void finish(float (&x)[2][8], const Inputs& inputs) const {
        inputs.inp.get(x);
        if (inp_low == nullptr) return;
        float low[2][8];
        inputs.low.get(low);
        LLMC_UNROLL
        for (int i = 0; i < 16; i++) x[i / 8][i % 8] += low[i / 8][i % 8];
    }
};

template <class F8>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    quantize_kernel(F8* row, F8* transposed, float* parts, Fp8State* state, const bf16* inp, const bf16* inp_low, int N,
                    int C, QuantizePass pass) {
    quantize_tile(row, transposed, parts, state, Bf16Values{inp, inp_low, C}, N, C, pass);
}

template <class F8>
void quantize(const Quantized<F8>& to, float* dbias, float* scratch, const bf16* inp, const bf16* inp_low, int N, int C,
              bool accumulate, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<F8> l("quantize", to, dbias, scratch, N, C, pass, stream);
    host::launch_or_loop<quantize_kernel<F8>, host::quantize<F8>>(
        KernelVariant::host_quantize, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        out(l.parts, l.part_elements), state_access(to.state, pass), in(inp, l.elements), in(inp_low, l.elements), N, C,
        pass);
    l.finish_bias(dbias, C, accumulate);
}

// ---- weights -------------------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    quantize_weight_kernel(e4m3* row, e4m3* transposed, Fp8State* state, const float* master, const float* factors,
                           int R, int C, QuantizePass pass) {
    quantize_weight_tile(row, transposed, state, state->scale, master, factors, R, C, pass);
}

void quantize_weight(const Quantized<e4m3>& to, const float* master, int R, int C, QuantizePass pass, stream_t stream,
                     const float* factors) {
    const QuantizeLaunch<e4m3> l("quantize_weight", to, nullptr, nullptr, R, C, pass, stream);
    host::launch_or_loop<quantize_weight_kernel, host::quantize_weight>(
        KernelVariant::host_quantize, l.config, out(l.row, l.elements), out(l.transposed, l.elements),
        state_access(to.state, pass), in(master, l.elements), in(factors, static_cast<size_t>(C)), R, C, pass);
}

#define LLMC_INSTANTIATE(F8)                                                                               \
    template void quantize(const Quantized<F8>&, float*, float*, const bf16*, const bf16*, int, int, bool, \
                           QuantizePass, stream_t);
LLMC_INSTANTIATE(e4m3)
LLMC_INSTANTIATE(e5m2)
#undef LLMC_INSTANTIATE

}  // namespace llmc
