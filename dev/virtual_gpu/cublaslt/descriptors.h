// The objects behind cuBLASLt's handles, with the library's defaults.
#pragma once
#include <cublasLt.h>

#include <cstdint>

namespace virtual_gpu {

struct Operation {  // cublasLtMatmulDesc_t
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType_t scale_type = CUDA_R_32F;
    int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST, transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    int32_t bias_type = -1;
    int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = a_mode, c_mode = a_mode, d_mode = a_mode;
    int8_t fast_accumulation = 0;
    const void *bias = nullptr, *a_scale = nullptr, *b_scale = nullptr, *c_scale = nullptr, *d_scale = nullptr;
};

struct Layout {  // cublasLtMatrixLayout_t; column-major
    cudaDataType_t type = CUDA_R_32F;
    uint64_t rows = 0, columns = 0;
    int64_t ld = 0;

    bool operator==(const Layout&) const = default;
};

struct Preference {  // cublasLtMatmulPreference_t
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C and D
};

// D = alpha op(A) op(B) + beta C, an (m, n) matrix with a sum over k.
struct Product {
    Operation operation;
    Layout a, b, c, d;

    uint64_t m() const { return d.rows; }
    uint64_t n() const { return d.columns; }
    uint64_t k() const { return operation.transa == CUBLAS_OP_N ? a.columns : a.rows; }
};

inline bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
inline const char* name_of(cudaDataType_t type) {
    return type == CUDA_R_32F ? "fp32" : type == CUDA_R_16BF ? "bf16" : type == CUDA_R_8F_E4M3 ? "e4m3" : "e5m2";
}
inline size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }

}  // namespace virtual_gpu
