// Matrix products on the host device: OpenBLAS, on BF16 operands widened to FP32.
//
// The product of two BF16 values is exact in FP32, so this differs from a tensor core in the order of the sums alone.
// The widening and rounding loops use the same OpenMP threads as OpenBLAS: link its OpenMP build, a pool of its own
// would fight with ours for the cores.
#include "llmc/linear/matmul.h"

#if !LLMC_CUDA
#include <cblas.h>

#include <algorithm>
#include <vector>

#include "llmc/device/host/runtime.h"

namespace llmc {

namespace {

// Loops over fewer elements than this are not worth waking threads for.
constexpr size_t kParallelElements = 1 << 15;

void widen(float* to, const bf16* from, size_t n) {
#pragma omp parallel for schedule(static) if (n >= kParallelElements)
    for (size_t i = 0; i < n; i++) to[i] = to_float(from[i]);
}

void add_bias(float* result, const float* bias, const Gemm& g) {
#pragma omp parallel for schedule(static) if (g.result_size() >= kParallelElements)
    for (int row = 0; row < g.rows; row++) {
        float* line = result + static_cast<size_t>(row) * g.columns;
        for (int i = 0; i < g.columns; i++) line[i] += bias[i];
    }
}

// result = BF16(values + bias): rounded once, after the bias.
void round_with_bias(bf16* result, const float* values, const bf16* bias, const Gemm& g) {
#pragma omp parallel for schedule(static) if (g.result_size() >= kParallelElements)
    for (int row = 0; row < g.rows; row++) {
        const size_t start = static_cast<size_t>(row) * g.columns;
        if (bias)
            for (int i = 0; i < g.columns; i++) result[start + i] = to_bf16(values[start + i] + to_float(bias[i]));
        else
            for (int i = 0; i < g.columns; i++) result[start + i] = to_bf16(values[start + i]);
    }
}

void sgemm(float* result, const float* first, const float* second, const Gemm& g, bool accumulate) {
    cblas_sgemm(CblasRowMajor, g.transpose_first ? CblasTrans : CblasNoTrans,
                g.transpose_second ? CblasTrans : CblasNoTrans, g.rows, g.columns, g.inner, 1.0f, first,
                g.first_columns, second, g.second_columns, accumulate ? 1.0f : 0.0f, result, g.columns);
}

void multiply_fp32(const Product& product, void* result, const void* first, const void* second, const void* bias) {
    const Gemm g(product);
    sgemm(static_cast<float*>(result), static_cast<const float*>(first), static_cast<const float*>(second), g,
          product.accumulate);
    if (bias) add_bias(static_cast<float*>(result), static_cast<const float*>(bias), g);
}

}  // namespace

struct Matmul::Backend {
    std::vector<float> first, second, result;  // widened operands, and the result before rounding

    void multiply_bf16(const Product& product, void* to, const void* a, const void* b, const void* bias) {
        const Gemm g(product);
        widen(first.data(), static_cast<const bf16*>(a), g.first_size());
        widen(second.data(), static_cast<const bf16*>(b), g.second_size());
        if (product.kind == Product::wgrad) {
            sgemm(static_cast<float*>(to), first.data(), second.data(), g, product.accumulate);
        } else {
            sgemm(result.data(), first.data(), second.data(), g, false);
            round_with_bias(static_cast<bf16*>(to), result.data(), static_cast<const bf16*>(bias), g);
        }
    }
};

Matmul::Matmul(bool) : backend_(new Backend) {}

Matmul::~Matmul() {
    try {
        synchronize_device();  // queued products use this object's buffers
    } catch (...) {            // an error in queued work has been or will be reported by whoever waits for it
    }
}

void Matmul::reserve(int N, int C, int OC) {
    synchronize_device();  // queued products hold no pointer into the buffers, but may be using them
    const auto grow = [](std::vector<float>& buffer, size_t size) { buffer.resize(std::max(buffer.size(), size)); };
    for (const Product::Kind kind : {Product::forward, Product::dgrad, Product::wgrad}) {
        const Gemm g({kind, OperandType::bf16, N, C, OC, false, false});
        grow(backend_->first, g.first_size());
        grow(backend_->second, g.second_size());
        if (kind != Product::wgrad) grow(backend_->result, g.result_size());
    }
}

size_t Matmul::reserved_bytes() const {
    return (backend_->first.size() + backend_->second.size() + backend_->result.size()) * sizeof(float);
}

void Matmul::submit(const Product& product, void* result, const void* first, const void* second, const void* bias,
                    stream_t stream) {
    const Gemm g(product);
    const bool narrow = product.type == OperandType::bf16;
    Backend& b = *backend_;
    if (narrow && (b.first.size() < g.first_size() || b.second.size() < g.second_size() ||
                   (product.kind != Product::wgrad && b.result.size() < g.result_size())))
        throw Error(ExitCode::failure, strprintf("%s: call Matmul::reserve(%d, %d, %d) before training",
                                                 product.describe().c_str(), product.N, product.C, product.OC));
    const size_t bytes = narrow ? 2 : 4;
    const Access written{result, g.result_size() * (product.kind == Product::wgrad ? 4 : bytes), product.accumulate,
                         true};
    host::submit(stream,
                 {in(static_cast<const char*>(first), g.first_size() * bytes),
                  in(static_cast<const char*>(second), g.second_size() * bytes),
                  in(static_cast<const char*>(bias), g.columns * bytes), written},
                 {product.name(), __FILE__, __LINE__}, [=, &b] {
                     if (narrow)
                         b.multiply_bf16(product, result, first, second, bias);
                     else
                         multiply_fp32(product, result, first, second, bias);
                 });
}

}  // namespace llmc
#endif
