// Matrix products on the host device. oneDNN computes FP32 products on CPUs with AVX-512, and BF16 products on CPUs
// that have instructions for them (products_host.h); FP8 operands are widened to BF16, which is exact. On other CPUs,
// OpenBLAS computes FP32 products, also those of BF16 and FP8 operands widened to FP32.
//
// The product of two BF16 or FP8 values is exact in FP32, so results differ from a tensor core's only by the order and
// precision of sums. The libraries and the loops here share their OpenMP threads. Link the OpenMP build of OpenBLAS,
// because a thread pool of its own would compete with ours for the cores.
// build: per device, optimized
#include "llmc/linear/matmul.h"

#if !LLMC_CUDA
#include <cblas.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "llmc/device/host/runtime.h"
#include "llmc/device/memory_ledger.h"
#include "llmc/linear/products_host.h"

namespace llmc {

namespace {

// Loops over fewer elements than this run in one thread.
constexpr size_t kParallelElements = 1 << 15;

void widen(float* to, const bf16* from, size_t n) {
#pragma omp parallel for schedule(static) if (n >= kParallelElements)
    for (size_t i = 0; i < n; i++) to[i] = to_float(from[i]);
}

// The values of the 256 codes of an FP8 format.
template <class F8>
const std::array<float, 256>& code_values() {
    static const std::array<float, 256> values = [] {
        std::array<float, 256> all;
        for (int code = 0; code < 256; code++) all[code] = to_float(F8{static_cast<uint8_t>(code)});
        return all;
    }();
    return values;
}

template <class F8>
void widen(float* to, const F8* from, size_t n) {
    const float* values = code_values<F8>().data();
#pragma omp parallel for schedule(static) if (n >= kParallelElements)
    for (size_t i = 0; i < n; i++) to[i] = values[from[i].bits];
}

// FP8 to BF16, which has every value of both formats. The bits are shifted; subnormals come from a table of the first
// codes, and Inf and NaN from comparisons.
template <class F8>
void widen(bf16* to, const F8* from, size_t n) {
    typedef uint16_t u16x32 __attribute__((vector_size(64)));
    typedef uint8_t u8x32 __attribute__((vector_size(32)));
    constexpr bool kE4M3 = std::is_same_v<F8, e4m3>;
    constexpr uint16_t kSubnormals = kE4M3 ? 8 : 4, kShift = kE4M3 ? 4 : 5, kOffset = kE4M3 ? 120 << 7 : 112 << 7;
    u16x32 table{};
    for (int code = 0; code < kSubnormals; code++)
        table[code] = static_cast<uint16_t>(float_bits(to_float(F8{static_cast<uint8_t>(code)})) >> 16);
    const size_t vectors = n / 32;
#pragma omp parallel for schedule(static) if (n >= kParallelElements)
    for (size_t v = 0; v < vectors; v++) {
        u8x32 codes;
        std::memcpy(&codes, from + v * 32, sizeof codes);
        const u16x32 wide = __builtin_convertvector(codes, u16x32), magnitude = wide & 0x7f, sign = (wide & 0x80) << 8;
        u16x32 result = (magnitude << kShift) + kOffset;
        result = magnitude < kSubnormals ? __builtin_shuffle(table, magnitude & 31) : result;
        if (kE4M3) {
            result = magnitude == 0x7f ? u16x32{} + 0x7fff : result | sign;
        } else {
            result = magnitude == 0x7c ? u16x32{} + 0x7f80 : result;
            result = magnitude > 0x7c ? u16x32{} + 0x7fff : result | sign;
        }
        std::memcpy(static_cast<void*>(to + v * 32), &result, sizeof result);
    }
    for (size_t i = vectors * 32; i < n; i++) to[i].bits = static_cast<uint16_t>(float_bits(to_float(from[i])) >> 16);
}

void widen(float& to, float value) { to = value; }
void widen(bf16& to, float value) { to.bits = static_cast<uint16_t>(float_bits(value) >> 16); }

// The values of an FP8 matrix (rows, K) with block scales. BF16 represents them exactly if the scales are powers of
// two, except for values below 2^-126, which lose bits.
template <class To>
void widen_blocks(To* to, const e4m3* from, const void* scales, ScaleLayout layout, int rows, int K) {
    const float* values = code_values<e4m3>().data();
    constexpr int kStep = kMxVector;  // elements that share a scale in every layout
#pragma omp parallel for schedule(static) if (static_cast <size_t>(rows) * K >= kParallelElements)
    for (int r = 0; r < rows; r++)
        for (int first = 0; first < K; first += kStep) {
            const float scale_inv = block_scale_inv(scales, layout, rows, K, r, first);
            const size_t start = static_cast<size_t>(r) * K + first;
            for (int i = 0; i < kStep; i++) widen(to[start + i], values[from[start + i].bits] * scale_inv);
        }
}

// An operand as To: widened into `memory`, unless it already has this type.
template <class To>
const To* widened(std::vector<To>& memory, const void* from, Product::Element element, size_t n) {
    if (element == Product::Element::e4m3)
        widen(memory.data(), static_cast<const e4m3*>(from), n);
    else if (element == Product::Element::e5m2)
        widen(memory.data(), static_cast<const e5m2*>(from), n);
    else if constexpr (std::is_same_v<To, bf16>)
        return static_cast<const bf16*>(from);
    else
        widen(memory.data(), static_cast<const bf16*>(from), n);
    return memory.data();
}

// Both operands of a BF16 or FP8 product as To.
template <class To>
std::pair<const To*, const To*> widened(std::vector<To>& first, std::vector<To>& second, const Product& product,
                                        const ProductTensors& t) {
    const Gemm g(product);
    if (!product.has_block_scales())
        return {widened(first, t.first, product.first_element(), g.first_size()),
                widened(second, t.second, product.second_element(), g.second_size())};
    widen_blocks(first.data(), static_cast<const e4m3*>(t.first), t.first_scale_inv, product.first_scales(), g.rows,
                 g.inner);
    widen_blocks(second.data(), static_cast<const e4m3*>(t.second), t.second_scale_inv, product.second_scales(),
                 g.columns, g.inner);
    return {first.data(), second.data()};
}

// Copies the addend to where the result will be.
void copy(void* result, const void* addend, size_t bytes) {
    if (result != addend) std::memcpy(result, addend, bytes);
}

// The factor of a product of codes or values. Scales of blocks are in the widened operands already.
float factor_of(const Product& product, const ProductTensors& t) {
    if (!is_fp8(product.type) || product.has_block_scales()) return t.factor;
    return *static_cast<const float*>(t.first_scale_inv) * *static_cast<const float*>(t.second_scale_inv);
}

void add_bias(float* result, const float* bias, const Gemm& g) {
#pragma omp parallel for schedule(static) if (g.result_size() >= kParallelElements)
    for (int row = 0; row < g.rows; row++) {
        float* line = result + static_cast<size_t>(row) * g.columns;
        for (int i = 0; i < g.columns; i++) line[i] += bias[i];
    }
}

// result = BF16(values + bias + factor * addend): rounded once. bias and addend may be nullptr.
void round_sums(bf16* result, float* values, const bf16* bias, const bf16* addend, float factor, const Gemm& g) {
#pragma omp parallel for schedule(static) if (g.result_size() >= kParallelElements)
    for (int row = 0; row < g.rows; row++) {
        const size_t start = static_cast<size_t>(row) * g.columns;
        float* const line = values + start;
        if (bias)
            for (int i = 0; i < g.columns; i++) line[i] += to_float(bias[i]);
        if (addend)
            for (int i = 0; i < g.columns; i++) line[i] += factor * to_float(addend[start + i]);
        for (int i = 0; i < g.columns; i++) result[start + i] = to_bf16(line[i]);
    }
}

// Sizes of the largest operands and results that were reserved, in elements. BF16 and FP8 differ in layout, not in
// size.
struct ProductSizes {
    size_t first = 0, second = 0, result = 0;
    size_t fp8_first = 0, fp8_second = 0;  // the same for products that may be FP8

    void cover(const Product& product) {
        const Gemm g(product);
        first = std::max(first, g.first_size());
        second = std::max(second, g.second_size());
        if (product.result_element() != Product::Element::fp32) result = std::max(result, g.result_size());
        if (!is_fp8(product.type)) return;
        fp8_first = std::max(fp8_first, g.first_size());
        fp8_second = std::max(fp8_second, g.second_size());
    }
    void cover_layer(const Matmul::LinearShape& s) {
        for (const Product::Kind kind : {Product::forward, Product::dgrad, Product::wgrad})
            cover({kind, s.type, s.N, s.C, s.OC, false, false});
    }
    bool holds(const ProductSizes& other) const {
        return first >= other.first && second >= other.second && result >= other.result &&
               fp8_first >= other.fp8_first && fp8_second >= other.fp8_second;
    }
};

// How oneDNN computes a product. The operands of FP8 products are widened to BF16.
host::OnednnProduct onednn_product(const Product& product, const ProductTensors& t, bool scaled) {
    const Gemm g(product);
    return {.rows = g.rows,
            .columns = g.columns,
            .inner = g.inner,
            .transpose_first = g.transpose_first,
            .transpose_second = g.transpose_second,
            .fp32 = product.type == OperandType::fp32,
            .fp32_result = product.result_element() == Product::Element::fp32,
            .scaled = scaled,
            .bias = product.bias,
            .kept = product.accumulate ? 1.0f
                    : t.addend         ? t.addend_factor
                                       : 0.0f};
}

// Calls each(product) for all kinds of BF16 and FP8 products of a layer.
template <class Each>
void for_each_bf16_product(const Matmul::LinearShape& s, const Each& each) {
    for (const OperandType operands : {OperandType::bf16, OperandType::e4m3}) {
        if (is_fp8(operands) && !is_fp8(s.type)) continue;
        for (const bool more : {false, true}) {
            const Product products[] = {{Product::forward, operands, s.N, s.C, s.OC, more, false},
                                        {Product::forward, operands, s.N, s.C, s.OC, more, true},
                                        {Product::dgrad, operands, s.N, s.C, s.OC, false, false},
                                        {Product::wgrad, operands, s.N, s.C, s.OC, false, more}};
            for (const Product& product : products) each(onednn_product(product, {}, is_fp8(operands)));
        }
    }
}

}  // namespace

struct Matmul::Backend {
    ProductSizes sizes;
    std::vector<float> first, second, result;       // operands widened to FP32, and the result before it is rounded
    std::vector<bf16> narrow_first, narrow_second;  // FP8 operands as BF16
    host::OnednnProducts onednn;

    void reserve(const LinearShape& s) {
        sizes.cover_layer(s);
        if (!host::OnednnProducts::has_bf16()) {
            first.resize(sizes.first);
            second.resize(sizes.second);
            result.resize(sizes.result);
            return;
        }
        narrow_first.resize(sizes.fp8_first);
        narrow_second.resize(sizes.fp8_second);
        for_each_bf16_product(s, [&](const host::OnednnProduct& p) { onednn.reserve(p); });
    }
    size_t bytes() const {
        return (first.size() + second.size() + result.size()) * sizeof(float) +
               (narrow_first.size() + narrow_second.size()) * sizeof(bf16) + onednn.reserved_bytes();
    }

    void multiply_bf16(const Product& product, const ProductTensors& t) {
        const Gemm g(product);
        const float scale = factor_of(product, t);
        const auto [a, b] = widened(narrow_first, narrow_second, product, t);
        if (t.addend) copy(t.result, t.addend, g.result_size() * bytes_of(product.result_element()));
        const bool scaled = is_fp8(product.type) ? !product.has_block_scales() : scale != 1.0f;
        onednn.multiply(onednn_product(product, t, scaled), t.result, a, b, t.bias, scale);
    }

    // result = scale * op(first) * op(second) + beta * result
    static void openblas(float* result, const float* first, const float* second, const Gemm& g, float scale,
                         float beta) {
        cblas_sgemm(CblasRowMajor, g.transpose_first ? CblasTrans : CblasNoTrans,
                    g.transpose_second ? CblasTrans : CblasNoTrans, g.rows, g.columns, g.inner, scale, first,
                    g.first_columns, second, g.second_columns, beta, result, g.columns);
    }

    void multiply_fp32(const Product& product, const ProductTensors& t) {
        const Gemm g(product);
        float* result = static_cast<float*>(t.result);
        if (t.addend) copy(result, t.addend, g.result_size() * sizeof(float));
        if (host::OnednnProducts::has_fp32())
            return onednn.multiply(onednn_product(product, t, t.factor != 1.0f), result, t.first, t.second, t.bias,
                                   t.factor);
        openblas(result, static_cast<const float*>(t.first), static_cast<const float*>(t.second), g, t.factor,
                 product.accumulate ? 1.0f : t.addend_factor);
        if (t.bias) add_bias(result, static_cast<const float*>(t.bias), g);
    }

    // For a CPU without BF16 instructions.
    void multiply_widened(const Product& product, const ProductTensors& t) {
        const Gemm g(product);
        const float scale = factor_of(product, t);
        const auto [a, b] = widened(first, second, product, t);
        if (product.kind == Product::wgrad)
            return openblas(static_cast<float*>(t.result), a, b, g, scale, product.accumulate ? 1.0f : 0.0f);
        openblas(result.data(), a, b, g, scale, 0.0f);
        const void* const addend = product.accumulate && !t.addend ? t.result : t.addend;
        round_sums(static_cast<bf16*>(t.result), result.data(), static_cast<const bf16*>(t.bias),
                   static_cast<const bf16*>(addend), product.accumulate ? 1.0f : t.addend_factor, g);
    }
};

Matmul::Matmul(bool allow_tf32, FastAccumulation fast, Fp8Scaling scaling)
    : allow_tf32_(allow_tf32), fast_(fast), scaling_(scaling) {}

Matmul::Backend& Matmul::backend() {
    if (!backend_) backend_ = std::make_unique<Backend>();
    return *backend_;
}

Matmul::~Matmul() {
    if (!backend_) return;
    MemoryLedger::instance().remove(backend_.get());
    tear_down([] { synchronize_device(); });  // queued products use this object's buffers
}

std::vector<std::string> Matmul::proposals(const Product&, int) { return {}; }
bool Matmul::emulates(const Product&) { return false; }
void Matmul::forget_plans() {}
std::string Matmul::emulated_because(Fp8Scaling) { return ""; }

void Matmul::reserve(const LinearShape& shape) {
    if (shape.type == OperandType::fp32) return;
    synchronize_device();  // queued products hold no pointer into the buffers, but may be using them
    backend().reserve(shape);
    MemoryLedger::instance().remove(backend_.get());  // host memory, which is this device's
    MemoryLedger::instance().add(backend_.get(), reserved_bytes(), MemoryKind::workspace);
}

size_t Matmul::reserved_bytes() const { return backend_ ? backend_->bytes() : 0; }

size_t Matmul::planned_bytes(const std::vector<LinearShape>& shapes, Fp8Scaling) {
    ProductSizes sizes;
    size_t workspace = 0;
    for (const LinearShape& s : shapes) {
        if (s.type == OperandType::fp32) continue;
        sizes.cover_layer(s);
        if (host::OnednnProducts::has_bf16())
            for_each_bf16_product(s, [&](const host::OnednnProduct& p) {
                workspace = std::max(workspace, host::OnednnProducts::workspace_bytes(p));
            });
    }
    if (!host::OnednnProducts::has_bf16()) return (sizes.first + sizes.second + sizes.result) * sizeof(float);
    return workspace + (sizes.fp8_first + sizes.fp8_second) * sizeof(bf16);
}

bool Matmul::submit(const Product& product, const ProductTensors& t, stream_t stream) {
    const Gemm g(product);
    const bool narrow = product.type != OperandType::fp32;
    Backend& b = backend();
    ProductSizes needed;
    needed.cover(product);
    if (narrow && !b.sizes.holds(needed))
        throw Error(ExitCode::failure, product.describe() + ": call Matmul::reserve() for this layer");
    const size_t result_bytes = bytes_of(product.result_element());
    const Access written{t.result, g.result_size() * result_bytes, product.accumulate, true};
    // A scale is one float, or a table of them.
    const auto scales = [&](const void* scale_inv, ScaleLayout layout, size_t rows) {
        const size_t bytes = product.has_block_scales() ? scale_bytes(layout, rows, g.inner) : sizeof(float);
        return in(static_cast<const char*>(scale_inv), bytes);
    };
    host::submit(stream,
                 {in(static_cast<const char*>(t.first), g.first_size() * bytes_of(product.first_element())),
                  in(static_cast<const char*>(t.second), g.second_size() * bytes_of(product.second_element())),
                  in(static_cast<const char*>(t.bias), g.columns * result_bytes),
                  in(static_cast<const char*>(t.addend), g.result_size() * result_bytes),
                  scales(t.first_scale_inv, product.first_scales(), g.rows),
                  scales(t.second_scale_inv, product.second_scales(), g.columns), written},
                 {product.name(), __FILE__, __LINE__}, [=, &b] {
                     if (!narrow)
                         b.multiply_fp32(product, t);
                     else if (host::OnednnProducts::has_bf16())
                         b.multiply_bf16(product, t);
                     else
                         b.multiply_widened(product, t);
                 });
    return false;
}

}  // namespace llmc
#endif
