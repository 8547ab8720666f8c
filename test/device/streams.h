// Work for tests of streams: three streams, and arrays that kernels fill and add.
#pragma once
#include "llmc/device/owned.h"
#include "test/device/arrays.h"

namespace llmc::test {

constexpr int N = 1000;  // elements of an array

static __global__ void fill_kernel(float* out, float value, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = value;
}
static __global__ void add_kernel(float* out, const float* a, const float* b, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = a[i] + b[i];
}

inline void fill(float* to, float value, stream_t stream) {
    launch<fill_kernel>({4, 256, 0, stream}, llmc::out(to, N), value, N);
}
inline void add(float* to, const float* a, const float* b, stream_t stream) {
    launch<add_kernel>({4, 256, 0, stream}, llmc::out(to, N), llmc::in(a, N), llmc::in(b, N), N);
}

struct Streams {
    DeviceArray<float> x{N}, y{N}, sum{N};
    OwnedStream a = create_stream(), b = create_stream(), c = create_stream();
    OwnedEvent first = create_event(true), second = create_event(true);
};

}  // namespace llmc::test
