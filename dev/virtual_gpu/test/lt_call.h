// One product through cuBLASLt's functions, with operands of small whole numbers.
#pragma once
#include <cublasLt.h>

#include <cstdint>
#include <vector>

namespace virtual_gpu::test {

constexpr auto kSuccess = CUBLAS_STATUS_SUCCESS;
constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;

struct LtMatrix {
    cudaDataType_t type;
    uint64_t rows, columns;
    std::vector<float> values;  // column-major
    void* device = nullptr;     // 256-byte aligned
};
// A matrix of whole numbers from -4 to 4 that depend on the seed.
LtMatrix lt_matrix(cudaDataType_t type, uint64_t rows, uint64_t columns, unsigned seed);
// The matrix's present contents on the device.
std::vector<float> lt_read(const LtMatrix& matrix);
void* lt_device(const void* data, size_t bytes);
void lt_free(std::initializer_list<void*> memory);

struct LtCall {
    LtCall(LtMatrix& a, LtMatrix& b, LtMatrix& d, bool transa, bool transb,
           cublasComputeType_t compute = CUBLAS_COMPUTE_32F);
    ~LtCall();
    LtCall(const LtCall&) = delete;
    LtCall& operator=(const LtCall&) = delete;

    template <class T>
    cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
    }
    cublasStatus_t find();  // finds algorithms, of which run() uses the first
    cublasStatus_t run(float alpha = 1, float beta = 0);
    cublasStatus_t run_at(const void* alpha, const void* beta);

    LtMatrix &a, &b, &d;
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t layouts[3] = {};
    cublasLtMatmulHeuristicResult_t found[8] = {};
    int count = 0;
    uint32_t alignment = 256, reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    char* workspace = nullptr;
    size_t workspace_bytes = 0;
};

// op(a) op(b), in double.
std::vector<double> lt_reference(const LtMatrix& a, const LtMatrix& b, bool transa, bool transb);

}  // namespace virtual_gpu::test
