// What this project's values are called in cuBLASLt, for those who make descriptors: matmul_cuda.cpp and dev/probe/.
#pragma once

#if LLMC_CUDA
#include <cublasLt.h>

#include "llmc/linear/matmul.h"

namespace llmc {

constexpr size_t kLtWorkspaceBytes = size_t{32} << 20;  // what cuBLAS recommends for Hopper
// Algorithms are asked for with this alignment, whatever a pointer really has: the choice then depends on the shape
// alone, and a recomputed product in another buffer has the same bits. Hopper's copies (TMA) need no more.
constexpr uint32_t kLtAlignment = 16;

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

inline cublasLtMatmulMatrixScale_t lt_scale_mode(ScaleLayout layout) {
    return layout == ScaleLayout::vectors ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
           : layout == ScaleLayout::tiles ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                          : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
}

}  // namespace llmc
#endif
