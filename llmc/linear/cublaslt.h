// cuBLASLt's names for this project's values, for the code that makes descriptors: matmul_cuda.cpp and dev/probe/.
#pragma once

#if LLMC_CUDA
#include <cublasLt.h>
#include <cublas_api.h>  // CUBLAS_VERSION

#include <utility>

#include "llmc/linear/matmul.h"
#include "llmc/linear/product_support.h"

#if CUBLAS_VERSION < 120400
#error "train_gpt needs CUDA 12.4 or newer: make CUDA_HOME=... names another toolkit"
#endif

namespace llmc {

// Algorithms are requested for this alignment, whatever a pointer's real one. The choice then depends on the shape
// alone, so a recomputed product in another buffer has the same bits. Hopper's copies (TMA) need no more.
constexpr uint32_t kLtAlignment = 16;
constexpr int kLtProposals = 8;  // algorithms to request; they are tried in order

inline cudaDataType_t lt_type(Product::Element element) {
    switch (element) {
        case Product::Element::fp32:
            return CUDA_R_32F;
        case Product::Element::bf16:
            return CUDA_R_16BF;
        case Product::Element::e4m3:
            return CUDA_R_8F_E4M3;
        case Product::Element::e5m2:
            return CUDA_R_8F_E5M2;
    }
    return CUDA_R_32F;
}

inline LtVersions lt_versions() { return {CUBLAS_VERSION, cublasLtGetVersion()}; }

// Sets the scale modes of operands A and B of a product with block scales. Headers before CUDA 12.8 have none, and
// those of 12.8 only MX's. why_not_native() keeps products that they lack from coming here.
inline cublasStatus_t lt_set_scale_modes(cublasLtMatmulDesc_t operation, ScaleLayout a, ScaleLayout b) {
#if CUBLAS_VERSION >= 120800
    for (const auto& [attribute, layout] :
         {std::pair{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a}, {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b}}) {
        cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
        if (layout != ScaleLayout::mx) {
#if CUBLAS_VERSION >= 120900
            mode = layout == ScaleLayout::tiles ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
#else
            return CUBLAS_STATUS_NOT_SUPPORTED;
#endif
        }
        const cublasStatus_t status = cublasLtMatmulDescSetAttribute(operation, attribute, &mode, sizeof mode);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
#else
    (void)operation, (void)a, (void)b;
    return CUBLAS_STATUS_NOT_SUPPORTED;
#endif
}

}  // namespace llmc
#endif
