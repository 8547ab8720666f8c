// Kernels that fill and summarize the probe's tensors (operands.h).
#include "dev/probe/operands.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"

namespace llmc::probe {

namespace {

template <class T>
__global__ void __launch_bounds__(kBlockThreads) fill_values_kernel(T* out, size_t n, uint32_t salt) {
    const size_t step = static_cast<size_t>(gridDim.x) * kBlockThreads * kPerThread;
    for (size_t i = (static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * kPerThread; i < n; i += step) {
        if (i + kPerThread <= n) {
            struct alignas(sizeof(T) * kPerThread < 16 ? sizeof(T) * kPerThread : 16) Pack {
                T value[kPerThread];
            } pack;
            LLMC_UNROLL
            for (int k = 0; k < kPerThread; k++) pack.value[k] = to<T>(value_at(salt, i + k));
            *reinterpret_cast<Pack*>(out + i) = pack;
        } else {
            for (size_t k = i; k < n; k++) out[k] = to<T>(value_at(salt, k));
        }
    }
}

__global__ void __launch_bounds__(kBlockThreads) fill_scales_kernel(float* out, size_t n, uint32_t salt) {
    const size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (i < n) out[i] = scale_at(salt, i);
}

template <class T>
LLMC_HD uint32_t raw_bits(T value) {
    return value.bits;
}
template <>
LLMC_HD uint32_t raw_bits(float value) {
    return float_bits(value);
}

// Uses integer atomics, so the order of the additions does not matter.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) summarize_kernel(Summary* out, const T* tensor, size_t n) {
    unsigned long long nonfinite = 0, checksum = 0;
    const size_t step = static_cast<size_t>(gridDim.x) * kBlockThreads;
    for (size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < n; i += step) {
        nonfinite += is_finite(to_float(tensor[i])) ? 0 : 1;
        checksum += random_bits(raw_bits(tensor[i]), static_cast<uint32_t>(i)) + (i >> 32);
    }
    atomicAdd(&out->nonfinite, nonfinite);
    atomicAdd(&out->checksum, checksum);
}

unsigned blocks_for(size_t n, size_t a_block) {
    return static_cast<unsigned>(std::clamp<size_t>(div_up(n, a_block), 1, 4096));
}

template <class T>
void fill_typed(void* out, size_t n, uint32_t salt, stream_t stream) {
    T* const p = static_cast<T*>(out);
    launch<fill_values_kernel<T>>({dim3(blocks_for(n, kBlockThreads * kPerThread)), dim3(kBlockThreads), 0, stream},
                                  {llmc::out(p, n)}, p, n, salt);
}

template <class T>
void summarize_typed(Summary* out, const void* tensor, size_t n, stream_t stream) {
    const T* const p = static_cast<const T*>(tensor);
    launch<summarize_kernel<T>>({dim3(blocks_for(n, kBlockThreads * 32)), dim3(kBlockThreads), 0, stream},
                                {inout(out, 1), in(p, n)}, out, p, n);
}

}  // namespace

void fill_values(void* out, Product::Element element, size_t n, uint32_t salt, stream_t stream) {
    switch (element) {
        case Product::Element::fp32:
            return fill_typed<float>(out, n, salt, stream);
        case Product::Element::bf16:
            return fill_typed<bf16>(out, n, salt, stream);
        case Product::Element::e4m3:
            return fill_typed<e4m3>(out, n, salt, stream);
        case Product::Element::e5m2:
            return fill_typed<e5m2>(out, n, salt, stream);
    }
}

void fill_scales(float* out, size_t n, uint32_t salt, stream_t stream) {
    launch<fill_scales_kernel>(
        {dim3(static_cast<unsigned>(div_up<size_t>(n, kBlockThreads))), dim3(kBlockThreads), 0, stream},
        {llmc::out(out, n)}, out, n, salt);
}

float stored_value(Product::Element element, uint32_t salt, size_t index) {
    const float value = value_at(salt, index);
    switch (element) {
        case Product::Element::bf16:
            return to_float(to_bf16(value));
        case Product::Element::e4m3:
            return to_float(to_e4m3_portable(value));
        case Product::Element::e5m2:
            return to_float(to_e5m2_portable(value));
        case Product::Element::fp32:
            break;
    }
    return value;
}

void summarize(Summary* out, const void* tensor, Product::Element element, size_t n, stream_t stream) {
    set_bytes(out, 0, sizeof(Summary), stream);
    if (element == Product::Element::fp32) return summarize_typed<float>(out, tensor, n, stream);
    summarize_typed<bf16>(out, tensor, n, stream);
}

}  // namespace llmc::probe
