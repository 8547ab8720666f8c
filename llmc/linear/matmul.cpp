// Shapes, checks and counts of matrix products, for both devices. See matmul.h.
#include "llmc/linear/matmul.h"

#include <algorithm>
#include <climits>

namespace llmc {

std::string Product::describe() const {
    const char* scales = !has_block_scales()         ? ""
                         : scaling == Fp8Scaling::mx ? " with mx scales"
                                                     : " with block scales";
    return fmt::format("{} {}{} N={} C={} OC={}{}{}", name(), word_of(type), scales, N, C, OC, bias ? " with bias" : "",
                       accumulate ? " accumulating" : "");
}

bool accumulates_fast(const Product& product, FastAccumulation wanted) {
    return is_fp8(product.type) && !product.has_block_scales() &&
           (wanted == FastAccumulation::all ||
            (wanted == FastAccumulation::forward && product.kind == Product::forward));
}

std::string emulation_note(const Product& product, const std::string& refusal) {
    return fmt::format("note: {}: {}; the same values are multiplied in BF16 instead, counted as `emulated`",
                       product.describe(), refusal);
}

Product::Element Product::first_element() const {
    if (emulated) return Element::bf16;
    return type == OperandType::e5m2_e4m3 ? Element::e5m2 : second_element();
}
Product::Element Product::second_element() const {
    if (emulated) return Element::bf16;
    return is_fp8(type) ? Element::e4m3 : type == OperandType::bf16 ? Element::bf16 : Element::fp32;
}

ScaleLayout Product::first_scales() const { return scaling == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors; }
ScaleLayout Product::second_scales() const {  // a weight's tiles, but in wgrad it is an activation
    return scaling == Fp8Scaling::mx ? ScaleLayout::mx : kind == wgrad ? ScaleLayout::vectors : ScaleLayout::tiles;
}

// In FP8, a matrix that has to be transposed is already stored transposed.
Gemm::Gemm(const Product& p)
    : transpose_first(p.kind == Product::wgrad && !is_fp8(p.type)),
      transpose_second(p.kind == Product::forward || is_fp8(p.type)),
      rows(p.kind == Product::wgrad ? p.OC : p.N),
      columns(p.kind == Product::forward ? p.OC : p.C),
      inner(p.kind == Product::forward ? p.C
            : p.kind == Product::dgrad ? p.OC
                                       : p.N) {
    first_rows = transpose_first ? inner : rows;
    first_columns = transpose_first ? rows : inner;
    second_rows = transpose_second ? columns : inner;
    second_columns = transpose_second ? inner : columns;
}

[[noreturn]] static void refuse_product(const Product& product, const std::string& why) {
    throw Error(ExitCode::failure, product.describe() + ": " + why);
}

static void check_shape(const Product& product) {
    if (product.N <= 0 || product.C <= 0 || product.OC <= 0)
        refuse_product(product, "every dimension must be positive");
    const struct {
        const char* name;
        int value;
    } dimensions[] = {{"N", product.N}, {"C", product.C}, {"OC", product.OC}};
    const int multiple = product.has_block_scales() ? block_length(product.scaling) : 16;
    if (is_fp8(product.type))
        for (const auto& d : dimensions)
            if (d.value % multiple != 0)
                refuse_product(product,
                               fmt::format("{}={} is not a multiple of {}, as these FP8 matmuls need; change the "
                                           "shape or run this layer in BF16",
                                           d.name, d.value, multiple));
    if (product.has_block_scales() && product.type != OperandType::e4m3)
        refuse_product(product, "block scales are for E4M3 operands");
    // cuBLASLt 13.1 computes wrong results on Hopper where a row's bytes do not fit an int32.
    const Gemm g(product);
    const size_t row_bytes = std::max({bytes_of(product.first_element()) * static_cast<size_t>(g.first_columns),
                                       bytes_of(product.second_element()) * static_cast<size_t>(g.second_columns),
                                       bytes_of(product.result_element()) * static_cast<size_t>(g.columns)});
    if (row_bytes > INT_MAX) refuse_product(product, fmt::format("a row of {} bytes exceeds 2^31 - 1", row_bytes));
}

static void check_tensors(const Product& product, const ProductTensors& t) {
    const bool is_combined = (t.addend && !product.accumulate) || t.factor != 1.0f || t.addend_factor != 0.0f;
    if (is_combined && (is_fp8(product.type) || product.kind == Product::wgrad || product.bias || product.accumulate ||
                        t.addend == t.result || !t.addend))
        refuse_product(product, "this product cannot be scaled and added to another matrix");
    for (const void* p : {static_cast<const void*>(t.result), t.first, t.second, t.bias, t.first_scale_inv,
                          t.second_scale_inv, t.addend})
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            refuse_product(product, fmt::format("pointer {} is not 16-byte aligned", p));
    if (!t.result || !t.first || !t.second) refuse_product(product, "a tensor is null");
    if (is_fp8(product.type) && (!t.first_scale_inv || !t.second_scale_inv)) refuse_product(product, "a scale is null");
}

ProductTensors ProductTensors::of(const Product& product, ProductTensors all) {
    if (!product.bias) all.bias = nullptr;
    if (!is_fp8(product.type)) all.first_scale_inv = all.second_scale_inv = nullptr;
    return all;
}

std::string Matmul::key(const Product& product) const {
    const bool is_tf32 = allow_tf32_ && product.type == OperandType::fp32;
    return product.describe() + (product.emulated                   ? " emulated"
                                 : accumulates_fast(product, fast_) ? " with fast accumulation"
                                 : is_tf32                          ? " in tf32"
                                                                    : "");
}

void Matmul::choose(ProductChoices choices) {
    choices_ = std::move(choices);
    chosen_.clear();
    forget_plans();
}

const std::string& Matmul::chosen(const Product& product) {
    const auto [place, is_new] = chosen_.try_emplace(product);
    if (!is_new || choices_.empty()) return place->second;
    const auto found = choices_.find(key(product));
    if (found != choices_.end()) place->second = found->second;
    return place->second;
}

void Matmul::multiply(const Product& product, const ProductTensors& tensors, stream_t stream) {
    check_shape(product);
    check_tensors(product, tensors);
    if (has_stream_ && stream != stream_)
        refuse_product(product, "a Matmul works on one stream, make another for this one");
    has_stream_ = true;
    stream_ = stream;
    if (submit(product, tensors, stream)) counts_.emulated++;
    count(product.type);
}

}  // namespace llmc
