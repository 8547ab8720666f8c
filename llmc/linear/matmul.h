// Matrix products: the three that a linear layer needs. cuBLASLt on a GPU (matmul_cuda.cu), OpenBLAS on the host device
// (matmul_host.cpp).
//
// All matrices are row-major. A linear layer is out = inp * weight^T + bias with weight (OC, C), as PyTorch and llm.c
// store it, and N tokens.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

enum class OperandType { fp32, bf16 };

template <class Real>
constexpr OperandType operand_type = OperandType::fp32;
template <>
inline constexpr OperandType operand_type<bf16> = OperandType::bf16;

// Products by the type of their operands. A replayed graph counts only once, when it is recorded.
struct ProductCounts {
    int64_t fp8 = 0, bf16 = 0, fp32 = 0;
};

// What a product is, apart from its pointers: the key of a plan.
struct Product {
    enum Kind { forward, dgrad, wgrad } kind;
    OperandType type;  // of both operands; the result has it too, but is FP32 in wgrad
    int N, C, OC;
    bool bias, accumulate;

    auto operator<=>(const Product&) const = default;
    std::string describe() const;  // e.g. "matmul forward bf16 N=4096 C=768 OC=2304 with bias"
    const char* name() const;      // e.g. "matmul forward"
};

// The same product as result (rows, columns) = op(first) * op(second), every matrix row-major as it lies in memory:
//   forward  out (N, OC)     = inp (N, C)     * weight (OC, C)^T
//   dgrad    dinp (N, C)     = dout (N, OC)   * weight (OC, C)
//   wgrad    dweight (OC, C) = dout (N, OC)^T * inp (N, C)
struct Gemm {
    explicit Gemm(const Product& product);
    int first_rows, first_columns, second_rows, second_columns;  // as stored
    bool transpose_first, transpose_second;
    int rows, columns, inner;
    size_t first_size() const { return static_cast<size_t>(first_rows) * first_columns; }
    size_t second_size() const { return static_cast<size_t>(second_rows) * second_columns; }
    size_t result_size() const { return static_cast<size_t>(rows) * columns; }
};

// Runs products on one device and one stream (its workspace serves one at a time; use an object a stream). Products
// accumulate in FP32, and the same product of the same shape always runs the same deterministic algorithm: equal inputs
// give equal bits, so recomputed activations equal the first ones. Real = float or bf16. Tensors must be 16-byte
// aligned; any shape, best multiples of 8.
class Matmul {
public:
    // allow_tf32: FP32 operands may be rounded to TF32 (GPU only). Otherwise FP32 products are true FP32.
    explicit Matmul(bool allow_tf32);
    ~Matmul();
    Matmul(const Matmul&) = delete;
    Matmul& operator=(const Matmul&) = delete;

    // Prepares for BF16 products up to this size, each of N, C and OC together; call it for every linear layer before
    // training. Products allocate nothing: on the host device one that was not prepared for is refused. (There it holds
    // the operands widened to FP32; on a GPU nothing is needed beyond the workspace of 32 MiB.)
    void reserve(int N, int C, int OC);
    size_t reserved_bytes() const;  // of device memory or, on the host device, of memory

    // out (N, OC) = inp (N, C) * weight (OC, C)^T + bias (OC), which may be nullptr. Rounded once, after the bias.
    template <class Real>
    void forward(Real* out, const Real* inp, const Real* weight, const Real* bias, int N, int C, int OC,
                 stream_t stream) {
        run({Product::forward, operand_type<Real>, N, C, OC, bias != nullptr, false}, out, inp, weight, bias, stream);
    }
    // dinp (N, C) = dout (N, OC) * weight (OC, C)
    template <class Real>
    void dgrad(Real* dinp, const Real* dout, const Real* weight, int N, int C, int OC, stream_t stream) {
        run({Product::dgrad, operand_type<Real>, N, C, OC, false, false}, dinp, dout, weight, nullptr, stream);
    }
    // dweight (OC, C) = dout (N, OC)^T * inp (N, C), plus dweight if accumulate; otherwise dweight is not read.
    template <class Real>
    void wgrad(float* dweight, const Real* dout, const Real* inp, int N, int C, int OC, bool accumulate,
               stream_t stream) {
        run({Product::wgrad, operand_type<Real>, N, C, OC, false, accumulate}, dweight, dout, inp, nullptr, stream);
    }

    const ProductCounts& counts() const { return counts_; }
    void reset_counts() { counts_ = {}; }

private:
    struct Backend;  // each device's own

    void run(const Product& product, void* result, const void* first, const void* second, const void* bias,
             stream_t stream);
    void submit(const Product& product, void* result, const void* first, const void* second, const void* bias,
                stream_t stream);

    std::unique_ptr<Backend> backend_;
    ProductCounts counts_;
    bool has_stream_ = false;
    stream_t stream_{};
};

}  // namespace llmc
