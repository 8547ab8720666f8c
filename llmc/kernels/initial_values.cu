// Kernel that draws a tensor's first values (initial_values.h).
#include "llmc/kernels/initial_values.h"

#include "llmc/device/kernel.cuh"

namespace llmc {

// Values of a thread are kBlockThreads apart, so that a warp's stores are contiguous and `out` needs no alignment.
template <class T>
static __global__ void __launch_bounds__(kBlockThreads)
    initial_values_kernel(T* out, InitialValues values, size_t first, size_t n) {
    const size_t begin = static_cast<size_t>(blockIdx.x) * kBlockThreads * kPerThread + threadIdx.x;
    float drawn[kPerThread];
    LLMC_UNROLL
    for (int i = 0; i < kPerThread; i++) drawn[i] = values.constant;
    if (values.deviation != 0) {
        LLMC_UNROLL
        for (int i = 0; i < kPerThread; i++)
            drawn[i] =
                values.deviation * normal_number(values.key, first + begin + static_cast<size_t>(i) * kBlockThreads);
    }
    LLMC_UNROLL
    for (int i = 0; i < kPerThread; i++) {
        const size_t at = begin + static_cast<size_t>(i) * kBlockThreads;
        if (at < n) out[at] = to<T>(first + at < values.count ? drawn[i] : 0.0f);
    }
}

void draw_initial_values(const StateArray& to, const InitialValues& values, size_t first, size_t n, stream_t stream) {
    if (n == 0) return;
    const unsigned blocks = static_cast<unsigned>(div_up<size_t>(n, kBlockThreads * kPerThread));
    to.typed([&]<class T>(T* masters) {
        launch<initial_values_kernel<T>>({blocks, kBlockThreads, 0, stream}, out(masters, n), values, first, n);
    });
}

}  // namespace llmc
