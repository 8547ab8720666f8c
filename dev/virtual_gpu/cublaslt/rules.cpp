// The rules of cuBLASLt. Sections refer to the cuBLAS documentation: "Narrow Precision Data Types Usage" (3.1.4),
// "cublasLtMatmul()" (3.4.17), "Tensor Core Usage" (2.1.11) and the release notes. Types that train_gpt does not use
// are refused as well.
#include "dev/virtual_gpu/cublaslt/rules.h"

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {
namespace {

constexpr int kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, kMx = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
              kOuter = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, kVectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
              kTiles = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

bool has_bias(const Product& p) { return p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS; }

// "Datatypes Supported": the bias has the type of C.
std::string why_not_wide(const Product& p) {
    const Operation& o = p.operation;
    if (p.a.type != p.b.type) return "A and B of different types";
    if (p.a.type != CUDA_R_32F && p.a.type != CUDA_R_16BF) return "a type of A and B other than FP32, BF16 and FP8";
    if (p.d.type != CUDA_R_32F && p.d.type != p.a.type) return "a type of D that does not go with A's";
    if (o.compute != CUBLAS_COMPUTE_32F && (o.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || p.a.type != CUDA_R_32F))
        return "a compute type that does not go with A's type";
    // 3.1.4: "If any scale is set for a non-narrow precisions matmul, cuBLAS will return an error."
    if (o.a_scale || o.b_scale || o.c_scale || o.d_scale) return "scales of a product that is not FP8";
    if (o.a_mode != kScalar || o.b_mode != kScalar || o.c_mode != kScalar || o.d_mode != kScalar)
        return "scale modes of a product that is not FP8";
    if (o.fast_accumulation) return "fast accumulation of a product that is not FP8";
    if (has_bias(p) && o.bias_type >= 0 && o.bias_type != p.d.type) return "a bias whose type is not D's";
    return "";
}

// 3.4.17, the table of FP8 kernels.
std::string why_not_fp8_types(const Product& p) {
    if (!is_fp8(p.a.type) || !is_fp8(p.b.type)) return "FP8 with another type";
    if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return "E5M2 times E5M2";
    const bool both_e4m3 = p.a.type == p.b.type;
    if (is_fp8(p.d.type)) {
        if (both_e4m3 && p.d.type != CUDA_R_8F_E4M3) return "E4M3 times E4M3 into E5M2";
        if (p.c.type != CUDA_R_16BF) return "a C of an FP8 result that is not BF16";
    } else if (p.d.type != CUDA_R_16BF && p.d.type != CUDA_R_32F) {
        return "a type of D that FP8 products do not have";
    } else if (p.c.type != p.d.type) {
        return "C and D of different types";
    }
    if (!has_bias(p)) return "";
    // If D is FP32 or FP8, BIAS_DATA_TYPE must be set, because the default is D's type.
    const int bias = p.operation.bias_type >= 0 ? p.operation.bias_type : p.d.type;
    return bias == CUDA_R_16BF ? "" : "a bias of an FP8 product that is not BF16";
}

// 2.1.11, "m, n, k support 16-byte alignment". The text does not require n to be a multiple of 16, but PyTorch and
// nanochat follow that too.
std::string why_not_fp8_shape(const Product& p, const uint32_t (&alignment)[4]) {
    constexpr uint64_t kUnit = 16;
    if (p.m() % kUnit || p.n() % kUnit || p.k() % kUnit)
        return format("FP8 dimensions that are no multiples of 16: %llu x %llu x %llu",
                      static_cast<unsigned long long>(p.m()), static_cast<unsigned long long>(p.n()),
                      static_cast<unsigned long long>(p.k()));
    for (const Layout* l : {&p.a, &p.b, &p.c, &p.d})
        if (static_cast<uint64_t>(l->ld) * bytes_of(l->type) % kUnit)
            return "a leading dimension of FP8 products that is no multiple of 16 bytes";
    for (const uint32_t bytes : alignment)
        if (bytes % kUnit) return "matrices of FP8 products that are not aligned to 16 bytes";
    return "";
}

// 3.1.4, "Scaling Mode Support Overview". The versions are the first whose headers have the modes.
std::string why_not_scale_modes(const Product& p, int capability, int version) {
    const int a = p.operation.a_mode, b = p.operation.b_mode;
    const auto both = [&](int mode) { return a == mode && b == mode; };
    const auto is_block = [](int mode) { return mode == kVectors || mode == kTiles; };
    if (p.operation.c_mode != kScalar || p.operation.d_mode != kScalar) return "scale modes of C and D";
    if (both(kScalar)) return "";
    if (is_fp8(p.d.type)) return "an FP8 result of a product with scales other than the tensor's";
    if (!p.operation.a_scale || !p.operation.b_scale) return "scale modes without scales";
    if (both(kMx)) {
        if (capability < 100) return "scales of 32 elements before compute capability 10.0";
        return version < 120800 ? "scales of 32 elements before 12.8" : "";
    }
    const bool blocks = is_block(a) && is_block(b);
    if (!both(kOuter) && !blocks) return format("scale modes %d and %d together", a, b);
    if (capability != 90) return format("scale modes %d and %d on another compute capability than 9.0", a, b);
    if (version < 120900) return format("scale modes %d and %d before 12.9", a, b);
    if (both(kTiles)) return "scales of 128 x 128 elements for both operands";
    if (blocks && p.operation.fast_accumulation) return "fast accumulation with scales of 128 elements";
    return "";
}

std::string why_not_fp8(const Product& p, const uint32_t (&alignment)[4], int capability, int version) {
    const Operation& o = p.operation;
    if (capability < 89) return "FP8 before compute capability 8.9";
    if (version < (capability == 89 ? 120100 : 111100)) return "FP8 in this version";
    if (o.compute != CUBLAS_COMPUTE_32F) return "a compute type of FP8 products other than FP32";
    const bool any_layout = capability / 10 == 10;  // 8.9, 9.0 and 12.x support only this layout
    if (!any_layout && (o.transa != CUBLAS_OP_T || o.transb != CUBLAS_OP_N))
        return "FP8 with another layout than TN on this compute capability";
    // "scales are generally only supported for narrow precision tensors", except C with the scalar mode.
    if (o.d_scale && !is_fp8(p.d.type)) return "a scale of D, which is not FP8";
    std::string why = why_not_fp8_types(p);
    if (why.empty()) why = why_not_fp8_shape(p, alignment);
    if (why.empty()) why = why_not_scale_modes(p, capability, version);
    return why;
}

}  // namespace

bool is_product(const Product& p) {
    const Operation& o = p.operation;
    if (o.transa != CUBLAS_OP_N && o.transa != CUBLAS_OP_T) return false;
    if (o.transb != CUBLAS_OP_N && o.transb != CUBLAS_OP_T) return false;
    const bool a_turned = o.transa == CUBLAS_OP_T, b_turned = o.transb == CUBLAS_OP_T;
    const uint64_t m = a_turned ? p.a.columns : p.a.rows, b_k = b_turned ? p.b.columns : p.b.rows;
    const uint64_t n = b_turned ? p.b.rows : p.b.columns;
    for (const Layout* l : {&p.a, &p.b, &p.c, &p.d})
        if (l->rows == 0 || l->columns == 0 || l->ld < static_cast<int64_t>(l->rows)) return false;
    return b_k == p.k() && p.d.rows == m && p.d.columns == n && p.c.rows == m && p.c.columns == n;
}

std::string why_not_supported(const Product& p, const uint32_t (&alignment)[4], int capability, int version) {
    const Operation& o = p.operation;
    if (capability >= 100 && version < 120800) return "Blackwell before 12.8";
    if (o.scale_type != CUDA_R_32F) return "a scale type other than FP32";
    if (o.pointer_mode != CUBLASLT_POINTER_MODE_HOST && o.pointer_mode != CUBLASLT_POINTER_MODE_DEVICE)
        return "a pointer mode other than host and device";
    if (o.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !has_bias(p)) return "an epilogue other than the bias";
    if (is_fp8(p.a.type) || is_fp8(p.b.type)) return why_not_fp8(p, alignment, capability, version);
    if (p.c.type != p.d.type) return "C and D of different types";
    return why_not_wide(p);
}

// 3.1.4.4 and 3.1.4.5: 16 bytes. Release notes of CUDA 13.1 Update 1: from 12.9 on, the library wrongly required this
// for the scalar too.
size_t scale_alignment(int mode, int version) {
    return mode != kScalar || (version >= 120900 && version <= 130100) ? 16 : 4;
}

}  // namespace virtual_gpu
