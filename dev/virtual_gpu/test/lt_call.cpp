// Builds and runs one product through cuBLASLt's functions (lt_call.h).
#include "dev/virtual_gpu/test/lt_call.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "dev/virtual_gpu/arithmetic/formats.h"

namespace virtual_gpu::test {
namespace {

constexpr size_t kWorkspace = 2 << 20;

size_t width(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }

void encode(char* to, cudaDataType_t type, float x) {
    const uint16_t half = bf16_of(x);
    if (type == CUDA_R_32F)
        std::memcpy(to, &x, 4);
    else if (type == CUDA_R_16BF)
        std::memcpy(to, &half, 2);
    else
        *to = static_cast<char>(type == CUDA_R_8F_E4M3 ? e4m3_of(x) : e5m2_of(x));
}
float decode(const char* from, cudaDataType_t type) {
    float x = 0;
    uint16_t half = 0;
    const auto byte = static_cast<uint8_t>(*from);
    std::memcpy(&x, from, type == CUDA_R_32F ? 4 : 0);
    std::memcpy(&half, from, type == CUDA_R_16BF ? 2 : 0);
    if (type == CUDA_R_32F) return x;
    if (type == CUDA_R_16BF) return float_of_bf16(half);
    return type == CUDA_R_8F_E4M3 ? float_of_e4m3(byte) : float_of_e5m2(byte);
}

}  // namespace

void* lt_device(const void* data, size_t bytes) {
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, bytes) == cudaSuccess);
    if (data) REQUIRE(cudaMemcpy(p, data, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    return p;
}
void lt_free(std::initializer_list<void*> memory) {
    for (void* p : memory) cudaFree(p);
}

LtMatrix lt_matrix(cudaDataType_t type, uint64_t rows, uint64_t columns, unsigned seed) {
    LtMatrix matrix{type, rows, columns, std::vector<float>(rows * columns)};
    std::mt19937 random(seed);
    std::vector<char> bytes(rows * columns * width(type));
    for (size_t i = 0; i < matrix.values.size(); i++) {
        matrix.values[i] = static_cast<float>(static_cast<int>(random() % 9) - 4);
        encode(&bytes[i * width(type)], type, matrix.values[i]);
    }
    matrix.device = lt_device(bytes.data(), bytes.size());
    return matrix;
}

std::vector<float> lt_read(const LtMatrix& matrix) {
    std::vector<char> bytes(matrix.rows * matrix.columns * width(matrix.type));
    REQUIRE(cudaMemcpy(bytes.data(), matrix.device, bytes.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    std::vector<float> values(matrix.rows * matrix.columns);
    for (size_t i = 0; i < values.size(); i++) values[i] = decode(&bytes[i * width(matrix.type)], matrix.type);
    return values;
}

LtCall::LtCall(LtMatrix& a_, LtMatrix& b_, LtMatrix& d_, bool transa, bool transb, cublasComputeType_t compute)
    : a(a_), b(b_), d(d_) {
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&operation, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(set(CUBLASLT_MATMUL_DESC_TRANSA, transa ? CUBLAS_OP_T : CUBLAS_OP_N) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(set(CUBLASLT_MATMUL_DESC_TRANSB, transb ? CUBLAS_OP_T : CUBLAS_OP_N) == CUBLAS_STATUS_SUCCESS);
    const LtMatrix* const matrices[] = {&a, &b, &d};
    for (int i = 0; i < 3; i++)
        REQUIRE(cublasLtMatrixLayoutCreate(&layouts[i], matrices[i]->type, matrices[i]->rows, matrices[i]->columns,
                                           static_cast<int64_t>(matrices[i]->rows)) == CUBLAS_STATUS_SUCCESS);
    workspace = static_cast<char*>(lt_device(nullptr, kWorkspace));
    workspace_bytes = kWorkspace;
}
LtCall::~LtCall() {
    cudaFree(workspace);
    for (cublasLtMatrixLayout_t layout : layouts) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(handle);
}

cublasStatus_t LtCall::find() {
    cublasLtMatmulPreference_t preference = nullptr;
    REQUIRE(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 8);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, 4);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, operation, layouts[0], layouts[1], layouts[2],
                                                                 layouts[2], preference, 8, found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

cublasStatus_t LtCall::run(float alpha, float beta) { return run_at(&alpha, &beta); }
cublasStatus_t LtCall::run_at(const void* alpha, const void* beta) {
    return cublasLtMatmul(handle, operation, alpha, a.device, layouts[0], b.device, layouts[1], beta, d.device,
                          layouts[2], d.device, layouts[2], &found[0].algo, workspace, workspace_bytes, nullptr);
}

std::vector<double> lt_reference(const LtMatrix& a, const LtMatrix& b, bool transa, bool transb) {
    const uint64_t m = transa ? a.columns : a.rows, k = transa ? a.rows : a.columns, n = transb ? b.rows : b.columns;
    std::vector<double> sums(m * n);
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < m; i++)
            for (uint64_t l = 0; l < k; l++)
                sums[j * m + i] += static_cast<double>(a.values[transa ? i * a.rows + l : l * a.rows + i]) *
                                   b.values[transb ? l * b.rows + j : j * b.rows + l];
    return sums;
}

}  // namespace virtual_gpu::test
