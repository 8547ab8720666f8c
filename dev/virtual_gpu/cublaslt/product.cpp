// Computes matrix products on the host, with OpenBLAS or with the exact sums of tensor cores.
#include "dev/virtual_gpu/cublaslt/product.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "dev/virtual_gpu/arithmetic/fused_sum.h"
#include "dev/virtual_gpu/cublaslt/scales.h"
#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/planned_faults.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu {
namespace {

constexpr uint64_t kPromotion = 128;  // elements between additions in FP32, on Hopper and Ada without fast accumulation

Element element_of(cudaDataType_t type) {
    return type == CUDA_R_32F       ? Element::fp32
           : type == CUDA_R_16BF    ? Element::bf16
           : type == CUDA_R_8F_E4M3 ? Element::e4m3
                                    : Element::e5m2;
}

float load(const char* p, cudaDataType_t type, size_t i) {
    float x;
    uint16_t half;
    switch (type) {
        case CUDA_R_32F:
            std::memcpy(&x, p + 4 * i, 4);
            return x;
        case CUDA_R_16BF:
            std::memcpy(&half, p + 2 * i, 2);
            return float_of_bf16(half);
        case CUDA_R_8F_E4M3:
            return float_of_e4m3(static_cast<uint8_t>(p[i]));
        default:
            return float_of_e5m2(static_cast<uint8_t>(p[i]));
    }
}
void store(char* p, cudaDataType_t type, size_t i, float x) {
    uint16_t half;
    switch (type) {
        case CUDA_R_32F:
            std::memcpy(p + 4 * i, &x, 4);
            break;
        case CUDA_R_16BF:
            half = bf16_of(x), std::memcpy(p + 2 * i, &half, 2);
            break;
        case CUDA_R_8F_E4M3:
            p[i] = static_cast<char>(e4m3_of(x));
            break;
        default:
            p[i] = static_cast<char>(e5m2_of(x));
            break;
    }
}

// The value after it is stored and read again.
float rounded(float x, cudaDataType_t type) {
    char bytes[4];
    store(bytes, type, 0, x);
    return load(bytes, type, 0);
}

const char* column_at(const void* matrix, const Layout& l, uint64_t column) {
    return static_cast<const char*>(matrix) + column * static_cast<uint64_t>(l.ld) * bytes_of(l.type);
}
const char* readable_column(const void* matrix, const Layout& l, uint64_t column, const char* what) {
    return Memory::get().readable(column_at(matrix, l, column), l.rows * bytes_of(l.type), what);
}

// A stored matrix as floats, column by column.
std::vector<float> widen(const void* matrix, const Layout& l, const char* what) {
    std::vector<float> values(l.rows * l.columns);
    for (uint64_t column = 0; column < l.columns; column++) {
        const char* const from = readable_column(matrix, l, column, what);
        float* const to = &values[column * l.rows];
        if (l.type == CUDA_R_32F)
            std::memcpy(to, from, l.rows * 4);
        else
            for (uint64_t row = 0; row < l.rows; row++) to[row] = load(from, l.type, row);
    }
    return values;
}

// An operand of a product, indexed by the outer index and the index along the sum, whichever of them its rows are.
struct Operand {
    std::vector<float> values;
    bool inner_is_row;
    uint64_t outer, inner;
    Scales scales;
    int least_exponent;

    Operand(const void* matrix, const Layout& l, bool inner_rows, const void* scale, int mode, const char* what,
            const char* scale_what)
        : values(widen(matrix, l, what)),
          inner_is_row(inner_rows),
          outer(inner_rows ? l.columns : l.rows),
          inner(inner_rows ? l.rows : l.columns),
          scales(scale, mode, outer, inner, scale_what),
          least_exponent(virtual_gpu::least_exponent(element_of(l.type))) {}

    float& at(uint64_t o, uint64_t i) { return values[inner_is_row ? o * inner + i : i * outer + o]; }

    // Transposes if needed, so that the elements of a sum lie one after the other.
    void turn() {
        if (inner_is_row) return;
        std::vector<float> turned(values.size());
        for (uint64_t i = 0; i < inner; i++)
            for (uint64_t o = 0; o < outer; o++) turned[o * inner + i] = values[i * outer + o];
        values.swap(turned);
        inner_is_row = true;
    }
    const float* along(uint64_t o) const { return &values[o * inner]; }
};

// Multiplies the block scales into the operand, for OpenBLAS.
void apply_scales(Operand& x) {
    if (!x.scales.block()) return;
    for (uint64_t o = 0; o < x.outer; o++)
        for (uint64_t i = 0; i < x.inner; i++) x.at(o, i) *= x.scales.at(o, i);
}

// A part of a sum over k.
struct Part {
    uint64_t begin, end;
};

void multiply_blas(Operand& a, Operand& b, Part part, std::vector<float>& sum) {
    const auto m = static_cast<int>(a.outer), n = static_cast<int>(b.outer), inner = static_cast<int>(a.inner);
    cblas_sgemm(CblasColMajor, a.inner_is_row ? CblasTrans : CblasNoTrans, b.inner_is_row ? CblasNoTrans : CblasTrans,
                m, n, static_cast<int>(part.end - part.begin), 1.0f, &a.at(0, part.begin), a.inner_is_row ? inner : m,
                &b.at(0, part.begin), b.inner_is_row ? inner : n, 0.0f, sum.data(), m);
}

// How tensor cores sum one element. `part` elements are summed between additions in FP32; with block scales, they are
// one block. Scales of 32 elements are exponents of the products themselves.
struct Summation {
    TensorCore core;
    uint64_t part;
    bool in_products;
};
Summation summation_of(const Product& p, const Operand& a) {
    const Operands kind = operands_of(element_of(p.a.type));
    Summation s{tensor_core(options().arithmetic, kind), p.k(), false};
    if (kind != Operands::fp8) return s;
    s.in_products = p.operation.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    if (s.in_products)
        s.part = a.scales.block();
    else if (a.scales.block() || (s.core.short_result && !p.operation.fast_accumulation))
        s.part = kPromotion;
    return s;
}

float sum_of(const Operand& a, const Operand& b, uint64_t m, uint64_t n, Part of, const Summation& s) {
    float total = 0;
    int count = 0;
    for (uint64_t k = of.begin; k < of.end; k += static_cast<uint64_t>(count)) {
        count = static_cast<int>(std::min(s.part - k % s.part, of.end - k));
        const float *x = a.along(m) + k, *y = b.along(n) + k;
        Exponents exponents{a.least_exponent, b.least_exponent, 0};
        if (s.in_products) {
            const float scale_a = a.scales.at(m, k), scale_b = b.scales.at(n, k);
            if (scale_a != scale_a || scale_b != scale_b) return scale_a + scale_b;
            exponents.scale = std::ilogb(scale_a) + std::ilogb(scale_b);
            total = tensor_sum(x, y, count, total, s.core, exponents);
            continue;
        }
        const float part = tensor_sum(x, y, count, 0, s.core, exponents);
        total += a.scales.block() ? part * (a.scales.at(m, k) * b.scales.at(n, k)) : part;
    }
    return total;
}

void multiply_exactly(const Product& p, const Operand& a, const Operand& b, Part part, std::vector<float>& sum) {
    const Summation s = summation_of(p, a);
    const int threads = options().threads ? options().threads : omp_get_max_threads();
#pragma omp parallel for num_threads(threads)
    for (uint64_t n = 0; n < p.n(); n++)
        for (uint64_t m = 0; m < p.m(); m++) sum[n * p.m() + m] = sum_of(a, b, m, n, part, s);
}

// Adds up all parts of the sums in FP32, in their order.
std::vector<float> multiply(const ProductCall& call, Operand& a, Operand& b) {
    const Product& p = call.product;
    const bool on_tensor_cores = p.a.type != CUDA_R_32F || p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const bool exactly = options().arithmetic != Arithmetic::fp32 && on_tensor_cores;
    for (Operand* x : {&a, &b}) exactly ? x->turn() : apply_scales(*x);
    std::vector<float> sum(p.m() * p.n()), others;
    for (size_t i = 0; i + 1 < call.bounds.size(); i++) {
        if (i == 1) others.resize(sum.size());
        std::vector<float>& to = i == 0 ? sum : others;
        const Part part{call.bounds[i], call.bounds[i + 1]};
        exactly ? multiply_exactly(p, a, b, part, to) : multiply_blas(a, b, part, to);
        if (call.rounds_parts)
            for (float& x : to) x = rounded(x, p.d.type);
        if (i > 0)
            for (size_t at = 0; at < sum.size(); at++) sum[at] += others[at];
    }
    return sum;
}

// The conversion from FP32 to TF32 is not documented. The instructions truncate; a kernel may round first.
void make_tf32(std::vector<float>& values) {
    const bool cut = options().arithmetic != Arithmetic::fp32;
    for (float& x : values) x = cut ? tf32_truncated(x) : tf32_of(x);
}

// The workspace has as many bytes as the call says, whatever the algorithm uses. Code that relies on their contents
// must find NaN. Because the used part may be large, only its ends are overwritten.
void overwrite_workspace(const ProductCall& call) {
    Range range;
    const uint64_t begin = reinterpret_cast<uint64_t>(call.workspace);
    if (call.workspace && !Memory::get().find(begin, call.workspace_bytes, range))
        fault("the workspace: %zu bytes at %p: %s", call.workspace_bytes, call.workspace,
              Memory::get().describe(begin, call.workspace_bytes).c_str());
    if (!call.workspace || call.workspace_written == 0) return;
    const size_t part = std::min<size_t>(call.workspace_written, 4096);
    char* const last = static_cast<char*>(call.workspace) + call.workspace_written - part;
    for (void* at : {call.workspace, static_cast<void*>(last)})
        std::memset(Memory::get().writable(at, part, "the workspace"), 0xFF, part);
}

float scalar(const void* at, const char* what) {
    if (!at) return 1.0f;
    float x;
    std::memcpy(&x, Memory::get().readable(at, sizeof x, what), sizeof x);
    return x;
}

// Finishes the sums: D = scaleD (alpha scaleA scaleB sum + beta scaleC C + bias).
void finish(const ProductCall& call, const Operand& a, const Operand& b, const std::vector<float>& sum) {
    const Product& p = call.product;
    const Operation& o = p.operation;
    const bool blocks = a.scales.block() != 0;
    const float c_scale = scalar(o.c_scale, "C's scale"), d_scale = scalar(o.d_scale, "D's scale");
    const auto bias_type = o.bias_type >= 0 ? static_cast<cudaDataType_t>(o.bias_type) : p.d.type;
    const char* bias = nullptr;
    if (o.epilogue == CUBLASLT_EPILOGUE_BIAS)
        bias = Memory::get().readable(o.bias, p.m() * bytes_of(bias_type), "the bias");
    for (uint64_t n = 0; n < p.n(); n++) {
        // reads C before it writes D, because they may be the same
        std::vector<float> c;
        if (call.beta != 0) {
            const char* const from = readable_column(call.c, p.c, n, "C");
            for (uint64_t m = 0; m < p.m(); m++) c.push_back(load(from, p.c.type, m));
        }
        char* const to = Memory::get().writable(column_at(call.d, p.d, n), p.m() * bytes_of(p.d.type), "D");
        for (uint64_t m = 0; m < p.m(); m++) {
            const size_t at = n * p.m() + m;
            const float factor = blocks ? call.alpha : call.alpha * (a.scales.at(m, 0) * b.scales.at(n, 0));
            float x = sum[at] * factor;
            if (!c.empty()) x += call.beta * c_scale * c[m];
            if (bias) x += load(bias, bias_type, m);
            store(to, p.d.type, m, x * d_scale);
        }
    }
}

// Elements of the result by number, column by column.
class Result {
public:
    explicit Result(const ProductCall& call) : call_(call), d_(call.product.d) {}
    uint64_t count() const { return d_.rows * d_.columns; }
    void change(uint64_t at, float (*f)(float)) {
        char* const element = bytes(at);
        store(element, d_.type, 0, f(load(element, d_.type, 0)));
    }
    void flip_lowest_bit(uint64_t at) { bytes(at)[0] = static_cast<char>(bytes(at)[0] ^ 1); }  // little-endian

private:
    char* bytes(uint64_t at) const {
        const char* const place = column_at(call_.d, d_, at / d_.rows) + at % d_.rows * bytes_of(d_.type);
        return Memory::get().writable(place, bytes_of(d_.type), "D");
    }
    const ProductCall& call_;
    const Layout& d_;
};

void falsify(const ProductCall& call) {
    constexpr uint64_t kTile = 64, kOneIn = 16;
    const uint64_t rows = call.product.m(), columns = call.product.n();
    Result result(call);
    if (call.lie == Lie::tile) {  // in the middle
        const uint64_t row = rows / 2 / kTile * kTile, column = columns / 2 / kTile * kTile;
        const auto change =
            is_fp8(call.product.d.type) ? [](float x) { return 1.25f * x; } : [](float x) { return 1.01f * x; };
        for (uint64_t n = column; n < std::min(column + kTile, columns); n++)
            for (uint64_t m = row; m < std::min(row + kTile, rows); m++) result.change(n * rows + m, change);
    }
    if (call.lie == Lie::unsteady) {
        const uint64_t step = std::min(kOneIn, result.count());
        for (uint64_t at = unsteady_number() % step; at < result.count(); at += step) result.flip_lowest_bit(at);
    }
}

void count(const ProductCall& call) {
    const Product& p = call.product;
    const Operation& o = p.operation;
    const char* const compute = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32" : "fp32";
    count_work({{"product", "matmul"},
                {"m", p.m()},
                {"n", p.n()},
                {"k", p.k()},
                {"transposed", {o.transa == CUBLAS_OP_T, o.transb == CUBLAS_OP_T}},
                {"types", {name_of(p.a.type), name_of(p.b.type), name_of(p.d.type)}},
                {"compute", p.a.type == CUDA_R_32F ? compute : name_of(p.a.type)},
                {"reads_c", call.beta != 0},
                {"bias", o.epilogue == CUBLASLT_EPILOGUE_BIAS},
                {"scales", {o.a_mode, o.b_mode}},
                {"fast_accumulation", o.fast_accumulation != 0}});
}

}  // namespace

void run_product(ProductCall call) {
    const Product& p = call.product;
    const Operation& o = p.operation;
    if (o.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        call.alpha = scalar(call.alpha_at, "alpha");
        call.beta = scalar(call.beta_at, "beta");
    }
    Operand a(call.a, p.a, o.transa == CUBLAS_OP_T, o.a_scale, o.a_mode, "A", "A's scales");
    Operand b(call.b, p.b, o.transb == CUBLAS_OP_N, o.b_scale, o.b_mode, "B", "B's scales");
    overwrite_workspace(call);
    if (o.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
        make_tf32(a.values);
        make_tf32(b.values);
    }
    if (counting()) count(call);
    finish(call, a, b, multiply(call, a, b));
    falsify(call);
}

}  // namespace virtual_gpu
