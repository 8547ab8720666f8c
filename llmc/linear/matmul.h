// The three matrix products of a linear layer: with cuBLASLt on a GPU (matmul_cuda.cpp), with oneDNN and OpenBLAS on
// the host device (matmul_host.cpp).
//
// All matrices are row-major. A linear layer is out = inp * weight^T + bias with weight (OC, C), as in PyTorch and
// llm.c, and N tokens. Hopper only multiplies FP8 operands that are both stored along the dimension that is summed over
// ("TN"), so FP8 dgrad and wgrad take their operands transposed.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "llmc/base/text.h"
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {

enum class OperandType {
    fp32,
    bf16,
    e4m3,       // both operands
    e5m2_e4m3,  // the gradient of the output in E5M2, the other operand in E4M3
};
constexpr bool is_fp8(OperandType type) { return type == OperandType::e4m3 || type == OperandType::e5m2_e4m3; }
template <>
inline constexpr WordTable<OperandType> kWords<OperandType> = {{"fp32", OperandType::fp32},
                                                               {"bf16", OperandType::bf16},
                                                               {"e4m3", OperandType::e4m3},
                                                               {"e5m2 x e4m3", OperandType::e5m2_e4m3}};

template <class Real>  // float or bf16
constexpr OperandType operand_type = std::is_same_v<Real, bf16> ? OperandType::bf16 : OperandType::fp32;
template <class F8>  // type of the output's gradient: e4m3 or e5m2
constexpr OperandType fp8_operand_type = std::is_same_v<F8, e5m2> ? OperandType::e5m2_e4m3 : OperandType::e4m3;

// --fp8-fast-accum: the FP8 products in which tensor cores accumulate with fewer bits, which is faster. GPU only.
enum class FastAccumulation { none, forward, all };

// Number of products by the type of their operands.
struct ProductCounts {
    int64_t fp8 = 0, bf16 = 0, fp32 = 0;
    int64_t emulated = 0;  // FP8 products that BF16 units computed from the same values. GPU only
};

// A product without its pointers: the key of a plan.
struct Product {
    enum Kind { forward, dgrad, wgrad } kind;
    OperandType type;
    int N, C, OC;
    bool bias, accumulate;                    // accumulate: adds to the addend, or to the result if there is none
    Fp8Scaling scaling = Fp8Scaling::tensor;  // scaling of FP8 operands
    bool emulated = false;                    // the operands are FP8 values in BF16, laid out like FP8 operands

    enum class Element { fp32, bf16, e4m3, e5m2 };
    Element first_element() const;
    Element second_element() const;
    // FP32 in wgrad; otherwise the operands', but BF16 if they are FP8.
    Element result_element() const {
        return kind == wgrad || type == OperandType::fp32 ? Element::fp32 : Element::bf16;
    }
    bool has_block_scales() const { return is_fp8(type) && scaling != Fp8Scaling::tensor; }
    ScaleLayout first_scales() const;  // with block scales
    ScaleLayout second_scales() const;
    auto operator<=>(const Product&) const = default;
    std::string describe() const;  // e.g. "matmul forward bf16 N=4096 C=768 OC=2304 with bias"
    // E.g. "matmul forward".
    const char* name() const {
        return kind == forward ? "matmul forward" : kind == dgrad ? "matmul dgrad" : "matmul wgrad";
    }
};
// Products, with the kinds of layers, or the optimizer, that need them.
using ProductUses = std::map<Product, std::set<std::string>>;
// True if tensor cores may accumulate this FP8 product with fewer bits. Block scales allow no fast accumulation.
bool accumulates_fast(const Product& product, FastAccumulation wanted);

// The algorithm of each product that does not use the first one that the library proposes: one of Matmul::proposals(),
// from any process, by Matmul::key().
using ProductChoices = std::map<std::string, std::string>;

// Message for the user when cuBLASLt refuses an FP8 product, printed once per product.
std::string emulation_note(const Product& product, const std::string& refusal);
constexpr size_t bytes_of(Product::Element element) {
    return element == Product::Element::fp32 ? 4 : element == Product::Element::bf16 ? 2 : 1;
}

// The pointers of a product. FP8 operands have scales: a code stands for code * scale_inv. scale_inv is one float, or a
// table of block scales (quantize_blocks.h).
struct ProductTensors {
    // Those of `all` that the product reads: a bias and scales only if it has some.
    static ProductTensors of(const Product& product, ProductTensors all);

    void* result;
    const void *first, *second, *bias = nullptr;
    const void *first_scale_inv = nullptr, *second_scale_inv = nullptr;
    // result = factor * product + addend_factor * addend, summed in FP32. `addend` has the result's layout and does not
    // overlap it. For BF16 and FP32 products without bias that do not accumulate. Products that accumulate have no
    // factors: result = product + bias + addend. Some of cuBLASLt's algorithms also round a BF16 product before they
    // add; the host device rounds once.
    const void* addend = nullptr;
    float factor = 1, addend_factor = 0;
};

// The same product as result (rows, columns) = op(first) * op(second), with every matrix row-major in memory:
//   forward  out (N, OC)     = inp (N, C)     * weight (OC, C)^T
//   dgrad    dinp (N, C)     = dout (N, OC)   * weight (OC, C)
//   wgrad    dweight (OC, C) = dout (N, OC)^T * inp (N, C)
// In FP8, dgrad and wgrad look like forward, because their operands are stored transposed:
//   dgrad    dinp (N, C)     = dout (N, OC)   * weight (C, OC)^T
//   wgrad    dweight (OC, C) = dout (OC, N)   * inp (C, N)^T
struct Gemm {
    explicit Gemm(const Product& product);
    int first_rows, first_columns, second_rows, second_columns;  // as stored
    bool transpose_first, transpose_second;
    int rows, columns, inner;  // FP8 operands are (rows, inner) and (columns, inner) as stored
    size_t first_size() const { return static_cast<size_t>(first_rows) * first_columns; }
    size_t second_size() const { return static_cast<size_t>(second_rows) * second_columns; }
    size_t result_size() const { return static_cast<size_t>(rows) * columns; }
};

// Runs products on one device and one stream. The workspace serves one product at a time, so use one object per stream.
// Products accumulate in FP32. A product of a given shape always runs the same deterministic algorithm, so recomputed
// activations have the same bits. Tensors must be 16-byte aligned. Real = float or bf16, of any shape; multiples of 8
// are fastest. In FP8 products N, C and OC must be multiples of 16.
class Matmul {
public:
    struct LinearShape {
        int N, C, OC;
        OperandType type = OperandType::e4m3;  // if it is FP8, some products may also be BF16
        bool operator==(const LinearShape&) const = default;
    };

    // allow_tf32: FP32 operands may be rounded to TF32 (GPU only). `scaling` applies to all FP8 products. If cuBLASLt
    // has no such products (emulated_because()) or refuses one, BF16 units multiply the same values, which BF16
    // represents exactly. A refused product is named on stderr.
    explicit Matmul(bool allow_tf32, FastAccumulation fast = FastAccumulation::forward,
                    Fp8Scaling scaling = Fp8Scaling::tensor);
    ~Matmul();
    Matmul(Matmul&&) = delete;

    FastAccumulation fast_accumulation() const { return fast_; }
    // Creates the library's handle and workspace, which planning does not need. Otherwise the first use does. If memory
    // is short, takes a smaller workspace and says so on stderr.
    void allocate() { backend(); }

    // The name under which choices are stored: describe(), and the settings of this object that change the result.
    std::string key(const Product& product) const;
    // The algorithms of products from now on. Products without a choice use the library's first proposal. So does a
    // product whose chosen algorithm this library lacks, which is named on stderr.
    void choose(ProductChoices choices);
    // The library's algorithms for a product: up to `limit` texts, the library's favourite first, valid in any process
    // with the same library. Empty on the host device, which has one way of computing a product.
    std::vector<std::string> proposals(const Product& product, int limit);
    // True if this device computes a product with BF16 units, because it has no such FP8 product.
    bool emulates(const Product& product);
    // Computes any product. `forward`, `dgrad` and the others below call this.
    void multiply(const Product& product, const ProductTensors& tensors, stream_t stream);

    // Reserves memory for products of this size or smaller. Call it for every linear layer before training, because
    // products that need more memory than reserved are refused. The host device keeps FP8 operands widened to BF16, or
    // all operands widened to FP32 if the CPU has no BF16 instructions; FP32 products need no memory. A GPU needs a
    // workspace of 32 MiB, and memory for operands of products that it emulates. If cuBLASLt refuses a product, memory
    // for its operands is allocated at its first run.
    void reserve(const LinearShape& shape);
    size_t reserved_bytes() const;
    // The reserved_bytes() of these layers on this device, or on a GPU of this compute capability (90 for sm_90) with
    // the newest cuBLASLt.
    static size_t planned_bytes(const std::vector<LinearShape>& shapes, Fp8Scaling scaling = Fp8Scaling::tensor);
    static size_t planned_bytes(const std::vector<LinearShape>& shapes, Fp8Scaling scaling, int compute_capability);

    // out (N, OC) = inp (N, C) * weight (OC, C)^T + bias (OC) + addend (N, OC), of which the last two may be nullptr.
    // Rounded once, after the bias.
    template <class Real>
    void forward(Real* out, const Real* inp, const Real* weight, const Real* bias, int N, int C, int OC,
                 stream_t stream, const Real* addend = nullptr) {
        multiply({Product::forward, operand_type<Real>, N, C, OC, bias != nullptr, addend != nullptr},
                 {.result = out, .first = inp, .second = weight, .bias = bias, .addend = addend}, stream);
    }
    // dinp (N, C) = dout (N, OC) * weight (OC, C)
    template <class Real>
    void dgrad(Real* dinp, const Real* dout, const Real* weight, int N, int C, int OC, stream_t stream) {
        multiply({Product::dgrad, operand_type<Real>, N, C, OC, false, false}, {dinp, dout, weight}, stream);
    }
    // dweight (OC, C) = dout (N, OC)^T * inp (N, C), plus dweight if accumulate; otherwise dweight is not read.
    template <class Real>
    void wgrad(float* dweight, const Real* dout, const Real* inp, int N, int C, int OC, bool accumulate,
               stream_t stream) {
        multiply({Product::wgrad, operand_type<Real>, N, C, OC, false, accumulate}, {dweight, dout, inp}, stream);
    }

    // The same in FP8. With Fp8Scaling::tensor each scale_inv is one float that is read when the product runs. It
    // points to Fp8State::scale_inv, which has 16 bytes to itself because cuBLASLt 13.1 needs that. The product of
    // both should be a normal FP32 number. With block scales (E4M3 only) it is the operand's table: under
    // Fp8Scaling::block, tiles for weights and vectors for others; under Fp8Scaling::mx, mx. N, C and OC are then
    // multiples of 128, or of 32 for mx.
    //
    // out (N, OC) = inp (N, C) * weight (OC, C)^T * both scales + bias (OC) + addend (N, OC); the last two may be
    // nullptr
    struct Addends {
        const bf16 *bias = nullptr, *addend = nullptr;
    };
    void forward_fp8(bf16* out, const e4m3* inp, const void* inp_scale_inv, const e4m3* weight,
                     const void* weight_scale_inv, const Addends& more, int N, int C, int OC, stream_t stream) {
        multiply(
            {Product::forward, OperandType::e4m3, N, C, OC, more.bias != nullptr, more.addend != nullptr, scaling_},
            {out, inp, weight, more.bias, inp_scale_inv, weight_scale_inv, more.addend}, stream);
    }
    // dinp (N, C) = dout (N, OC) * weight_transposed (C, OC)^T * both scales. F8 = e4m3 or e5m2.
    template <class F8>
    void dgrad_fp8(bf16* dinp, const F8* dout, const void* dout_scale_inv, const e4m3* weight_transposed,
                   const void* weight_scale_inv, int N, int C, int OC, stream_t stream) {
        multiply({Product::dgrad, fp8_operand_type<F8>, N, C, OC, false, false, scaling_},
                 {dinp, dout, weight_transposed, nullptr, dout_scale_inv, weight_scale_inv}, stream);
    }
    // dweight (OC, C) = dout_transposed (OC, N) * inp_transposed (C, N)^T * both scales, plus dweight if accumulate
    template <class F8>
    void wgrad_fp8(float* dweight, const F8* dout_transposed, const void* dout_scale_inv, const e4m3* inp_transposed,
                   const void* inp_scale_inv, int N, int C, int OC, bool accumulate, stream_t stream) {
        multiply({Product::wgrad, fp8_operand_type<F8>, N, C, OC, false, accumulate, scaling_},
                 {dweight, dout_transposed, inp_transposed, nullptr, dout_scale_inv, inp_scale_inv}, stream);
    }

    // Why this device emulates all FP8 products with such scales; "" if it has them. The host device has every kind.
    static std::string emulated_because(Fp8Scaling scaling);

    const ProductCounts& counts() const { return counts_; }
    // Counts a product. For those that other kernels compute.
    void count(OperandType type) {
        (is_fp8(type) ? counts_.fp8 : type == OperandType::bf16 ? counts_.bf16 : counts_.fp32)++;
    }
    // Pass earlier counts as `to` so that products in between do not count.
    void reset_counts(const ProductCounts& to = {}) { counts_ = to; }

private:
    struct Backend;  // differs by device

    Backend& backend();
    const std::string& chosen(const Product& product);  // its algorithm; "" if there is no choice
    void forget_plans();
    bool submit(const Product& product, const ProductTensors& tensors, stream_t stream);  // true: emulated
    void emulate(const Product& product, ProductTensors tensors, stream_t stream);        // GPU only

    const bool allow_tf32_;
    const FastAccumulation fast_;
    const Fp8Scaling scaling_;
    std::unique_ptr<Backend> backend_;
    ProductChoices choices_;
    std::map<Product, std::string> chosen_;  // choices_ by product, filled in on first use
    ProductCounts counts_;
    bool has_stream_ = false;
    stream_t stream_{};
};

}  // namespace llmc
