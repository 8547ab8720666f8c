// Matrix products on a GPU: cuBLASLt. Descriptors and algorithm of a product are made once a shape and kept.
//
// cuBLASLt is column-major. A row-major (rows, columns) matrix is, byte for byte, the column-major (columns, rows)
// transpose of it; so result = op(first) * op(second) is asked for as result^T = op(second)^T * op(first)^T, with
// `second` as cuBLASLt's A and `first` as its B.
#include "llmc/linear/matmul.h"

#if LLMC_CUDA
#include <cublasLt.h>

#include <map>

namespace llmc {

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS recommends for Hopper
// Algorithms are asked for with this alignment, whatever a pointer really has: the choice then depends on the shape
// alone, and a recomputed product in another buffer has the same bits. Hopper's copies (TMA) need no more.
constexpr uint32_t kAlignment = 16;

void check_lt(cublasStatus_t status, const char* call, const std::string& what, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::no_resources : ExitCode::failure,
                strprintf("%s:%d: %s failed: %s (%s) [%s]", file, line, call, cublasLtGetStatusName(status),
                          cublasLtGetStatusString(status), what.c_str()));
}
#define LLMC_CHECK_LT(call, what) check_lt((call), #call, what, __FILE__, __LINE__)

// Descriptors of one product, and the algorithm that runs it.
struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, result = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};

    Plan() = default;
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;
    ~Plan() {
        if (operation) cublasLtMatmulDescDestroy(operation);
        for (cublasLtMatrixLayout_t layout : {a, b, result})
            if (layout) cublasLtMatrixLayoutDestroy(layout);
    }
};

struct Preference {
    cublasLtMatmulPreference_t handle = nullptr;
    ~Preference() {
        if (handle) cublasLtMatmulPreferenceDestroy(handle);
    }
};

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value,
         const Product& product) {
    LLMC_CHECK_LT(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), product.describe());
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value,
         const Product& product) {
    LLMC_CHECK_LT(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof value),
                  product.describe());
}

cudaDataType_t data_type(OperandType type) { return type == OperandType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

// A row-major matrix as cuBLASLt sees it.
void make_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int rows, int columns, const Product& product) {
    LLMC_CHECK_LT(cublasLtMatrixLayoutCreate(layout, type, columns, rows, columns), product.describe());
}

// GELU is not taken into the epilogue: when activations are recomputed, our own GELU kernel must give the bits of the
// first pass, which cuBLASLt's does not, and its measured gain in a training step is 0.7 % (llm.c #591).
void make_operation(Plan& plan, const Product& product, bool allow_tf32) {
    const Gemm g(product);
    const cudaDataType_t type = data_type(product.type);
    const bool tf32 = allow_tf32 && product.type == OperandType::fp32;
    LLMC_CHECK_LT(
        cublasLtMatmulDescCreate(&plan.operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        product.describe());
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    if (product.bias) {  // one value a row of the column-major result: a column of ours
        set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, product);
        set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type, product);
    }
    make_layout(&plan.a, type, g.second_rows, g.second_columns, product);
    make_layout(&plan.b, type, g.first_rows, g.first_columns, product);
    make_layout(&plan.result, product.kind == Product::wgrad ? CUDA_R_32F : type, g.rows, g.columns, product);
}

// A product split along its inner dimension must add its parts up in a fixed order, and in FP32. That leaves no
// reduction, or one through the workspace in compute type. Excluded: INPLACE, where parts are added to the result in
// the order in which blocks come to it, and OUTPUT_TYPE, which rounds the parts to BF16.
void choose_algorithm(Plan& plan, const Product& product, cublasLtHandle_t handle) {
    Preference preference;
    LLMC_CHECK_LT(cublasLtMatmulPreferenceCreate(&preference.handle), product.describe());
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes, product);
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, product);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        set(preference, attribute, kAlignment, product);

    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.a, plan.b, plan.result,
                                                                 plan.result, preference.handle, 1, &found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0))
        throw Error(ExitCode::failure, product.describe() +
                                           ": cuBLASLt has no algorithm for this product on this GPU; "
                                           "CUBLASLT_LOG_LEVEL=5 prints its reason");
    check_lt(status, "cublasLtMatmulAlgoGetHeuristic", product.describe(), __FILE__, __LINE__);
    plan.algorithm = found.algo;
}

}  // namespace

struct Matmul::Backend {
    const bool allow_tf32;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    std::map<Product, Plan> plans;

    explicit Backend(bool tf32) : allow_tf32(tf32) {
        LLMC_CHECK_LT(cublasLtCreate(&handle), "matrix products");
        workspace = device_malloc(kWorkspaceBytes);
    }
    ~Backend() {
        try {
            device_free(workspace);
        } catch (...) {  // the device is already lost, and its error reported
        }
        plans.clear();
        cublasLtDestroy(handle);
    }

    Plan& plan_for(const Product& product) {
        const auto [place, is_new] = plans.try_emplace(product);
        if (!is_new) return place->second;
        try {
            make_operation(place->second, product, allow_tf32);
            choose_algorithm(place->second, product, handle);
        } catch (...) {
            plans.erase(place);
            throw;
        }
        return place->second;
    }
};

Matmul::Matmul(bool allow_tf32) : backend_(new Backend(allow_tf32)) {}
Matmul::~Matmul() = default;

void Matmul::reserve(int, int, int) {}
size_t Matmul::reserved_bytes() const { return kWorkspaceBytes; }

void Matmul::submit(const Product& product, void* result, const void* first, const void* second, const void* bias,
                    stream_t stream) {
    Plan& plan = backend_->plan_for(product);
    if (product.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, product);
    const float alpha = 1.0f, beta = product.accumulate ? 1.0f : 0.0f;
    LLMC_CHECK_LT(
        cublasLtMatmul(backend_->handle, plan.operation, &alpha, second, plan.a, first, plan.b, &beta, result,
                       plan.result, result, plan.result, &plan.algorithm, backend_->workspace, kWorkspaceBytes, stream),
        product.describe());
}

}  // namespace llmc
#endif
