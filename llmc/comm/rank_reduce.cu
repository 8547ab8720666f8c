// Kernels and launchers of rank_reduce.h.
#include "llmc/comm/rank_reduce.h"

#include "llmc/device/kernel.cuh"

namespace llmc {
namespace {
constexpr int kThreads = 256;
constexpr int kPerThread = 8;
}  // namespace

// Each thread sums eight elements. `vector`: every piece starts at a multiple of 16 bytes, so rows are read in 16-byte
// accesses.
template <class T, bool vector>
static __global__ void __launch_bounds__(kThreads)
    sum_pieces_kernel(float* out, const T* pieces, int world, size_t count, bool accumulate) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPerThread;
    if (vector && first + kPerThread <= count) {
        float sum[8], piece[8];
        if (accumulate)
            load8(out + first, sum);
        else
            load8(pieces + first, sum);
        for (int r = accumulate ? 0 : 1; r < world; r++) {
            load8(pieces + r * count + first, piece);
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) sum[i] += piece[i];
        }
        store8(out + first, sum);
        return;
    }
    for (size_t i = first; i < first + kPerThread && i < count; i++) {
        float sum = accumulate ? out[i] : to_float(pieces[i]);
        for (int r = accumulate ? 0 : 1; r < world; r++) sum += to_float(pieces[r * count + i]);
        out[i] = sum;
    }
}

template <class T>
void sum_pieces(float* out_pointer, const T* pieces, int world, size_t count, bool accumulate, stream_t stream) {
    if (count == 0) return;
    const bool vector = count * sizeof(T) % 16 == 0 && reinterpret_cast<uintptr_t>(pieces) % 16 == 0 &&
                        reinterpret_cast<uintptr_t>(out_pointer) % 16 == 0;
    const LaunchConfig config(static_cast<unsigned>(div_up<size_t>(count, kThreads * kPerThread)), kThreads, 0, stream);
    const Access result = accumulate ? inout(out_pointer, count) : out(out_pointer, count),
                 inputs = in(pieces, count * static_cast<size_t>(world));
    if (vector)
        launch<sum_pieces_kernel<T, true>>(config, {result, inputs}, out_pointer, pieces, world, count, accumulate);
    else
        launch<sum_pieces_kernel<T, false>>(config, {result, inputs}, out_pointer, pieces, world, count, accumulate);
}

template <class T>
static __global__ void __launch_bounds__(kThreads)
    reduce_pieces_kernel(T* out, const T* pieces, int world, size_t count, ReduceOp op) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    T result = pieces[i];
    for (int r = 1; r < world; r++) {
        const T piece = pieces[r * count + i];
        result = op == ReduceOp::sum ? result + piece : piece > result ? piece : result;
    }
    out[i] = result;
}

template <class T>
void reduce_pieces(T* out_pointer, const T* pieces, int world, size_t count, ReduceOp op, stream_t stream) {
    if (count == 0) return;
    launch<reduce_pieces_kernel<T>>({static_cast<unsigned>(div_up<size_t>(count, kThreads)), kThreads, 0, stream},
                                    out(out_pointer, count), in(pieces, count * static_cast<size_t>(world)), world,
                                    count, op);
}

template void sum_pieces<float>(float*, const float*, int, size_t, bool, stream_t);
template void sum_pieces<bf16>(float*, const bf16*, int, size_t, bool, stream_t);
template void reduce_pieces<float>(float*, const float*, int, size_t, ReduceOp, stream_t);
template void reduce_pieces<double>(double*, const double*, int, size_t, ReduceOp, stream_t);
template void reduce_pieces<int32_t>(int32_t*, const int32_t*, int, size_t, ReduceOp, stream_t);
template void reduce_pieces<uint32_t>(uint32_t*, const uint32_t*, int, size_t, ReduceOp, stream_t);
template void reduce_pieces<uint64_t>(uint64_t*, const uint64_t*, int, size_t, ReduceOp, stream_t);

}  // namespace llmc
