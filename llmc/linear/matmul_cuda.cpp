// Matrix products on a GPU: cuBLASLt. Descriptors and algorithm of a product are made once a shape and kept.
//
// cuBLASLt is column-major. A row-major (rows, columns) matrix is, byte for byte, the column-major (columns, rows)
// transpose of it; so result = op(first) * op(second) is asked for as result^T = op(second)^T * op(first)^T, with
// `second` as cuBLASLt's A and `first` as its B. For FP8, where `second` is transposed and `first` is not, that is the
// one layout that Hopper has (transa T, transb N). Weights and activations, always E4M3, are A where E5M2 meets E4M3.
#include "llmc/linear/matmul.h"

#if LLMC_CUDA
#include <algorithm>
#include <map>

#include "llmc/kernels/quantize_blocks.h"
#include "llmc/linear/cublaslt.h"

namespace llmc {

namespace {

void check_lt(cublasStatus_t status, const char* call, const std::string& what, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::no_resources : ExitCode::failure,
                strprintf("%s:%d: %s failed: %s (%s) [%s]", file, line, call, cublasLtGetStatusName(status),
                          cublasLtGetStatusString(status), what.c_str()));
}
#define LLMC_CHECK_LT(call, what) check_lt((call), #call, what, __FILE__, __LINE__)

// cuBLASLt has 128-element blocks on compute capability 9.0 alone, MX blocks from 10.0 on; elsewhere BF16 units
// multiply the dequantized values, which are BF16 numbers exactly. Without a device to ask: as on Hopper.
bool card_lacks(Fp8Scaling scaling) {
    if (scaling == Fp8Scaling::tensor) return false;
    int device = 0, major = 0;
    const bool found = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    if (!found) {
        cudaGetLastError();
        major = 9;
    }
    return scaling == Fp8Scaling::block ? major != 9 : major < 10;
}

// The same product of BF16 operands that lie as FP8 ones do.
Product emulation_of(Product product) {
    product.emulated = true;
    return product;
}

// Elements of the buffers for dequantized operands.
struct EmulationSizes {
    size_t first = 0, second = 0;

    void cover(int N, int C, int OC) {
        for (const Product::Kind kind : {Product::forward, Product::dgrad, Product::wgrad}) {
            const Gemm g({kind, OperandType::e4m3, N, C, OC, false, false});
            first = std::max(first, g.first_size());
            second = std::max(second, g.second_size());
        }
    }
    size_t bytes() const { return (first + second) * sizeof(bf16); }
};

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

// A row-major matrix as cuBLASLt sees it.
void make_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int rows, int columns, const Product& product) {
    LLMC_CHECK_LT(cublasLtMatrixLayoutCreate(layout, type, columns, rows, columns), product.describe());
}

// GELU is not taken into the epilogue: when activations are recomputed, our own GELU kernel must give the bits of the
// first pass, which cuBLASLt's does not, and its measured gain in a training step is 0.7 % (llm.c #591).
void make_operation(Plan& plan, const Product& product, bool allow_tf32, FastAccumulation fast) {
    const Gemm g(product);
    const bool tf32 = allow_tf32 && product.type == OperandType::fp32;
    LLMC_CHECK_LT(
        cublasLtMatmulDescCreate(&plan.operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        product.describe());
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    if (product.bias) {  // one value a row of the column-major result: a column of ours
        set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, product);
        set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_type(product.result_element()), product);
    }
    if (is_fp8(product.type) && !product.emulated) {  // the attributes are refused for other types
        const bool wanted =
            !product.has_block_scales() &&  // which have no fast accumulation
            (fast == FastAccumulation::all || (fast == FastAccumulation::forward && product.kind == Product::forward));
        set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(wanted), product);
        if (product.has_block_scales()) {
            set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, lt_scale_mode(product.second_scales()), product);
            set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, lt_scale_mode(product.first_scales()), product);
        }
    }
    make_layout(&plan.a, lt_type(product.second_element()), g.second_rows, g.second_columns, product);
    make_layout(&plan.b, lt_type(product.first_element()), g.first_rows, g.first_columns, product);
    make_layout(&plan.result, lt_type(product.result_element()), g.rows, g.columns, product);
}

// Scales of C and D are never set: cuBLASLt refuses them for a result that is not FP8, and 13.1 may hang on one of C.
void set_pointers(const Plan& plan, const Product& product, const void* bias, const void* a_scale_inv,
                  const void* b_scale_inv) {
    if (product.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, product);
    if (!is_fp8(product.type) || product.emulated) return;
    set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a_scale_inv, product);
    set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b_scale_inv, product);
}

// A product split along its inner dimension must add its parts up in a fixed order, and in FP32. That leaves no
// reduction, or one through the workspace in compute type. Excluded: INPLACE, where parts are added to the result in
// the order in which blocks come to it, and OUTPUT_TYPE, which rounds the parts to BF16.
void choose_algorithm(Plan& plan, const Product& product, cublasLtHandle_t handle) {
    Preference preference;
    LLMC_CHECK_LT(cublasLtMatmulPreferenceCreate(&preference.handle), product.describe());
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kLtWorkspaceBytes, product);
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, product);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        set(preference, attribute, kLtAlignment, product);

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
    const FastAccumulation fast;
    const bool emulates;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    std::map<Product, Plan> plans;
    EmulationSizes room;
    bf16 *first = nullptr, *second = nullptr;  // dequantized operands

    Backend(bool tf32, FastAccumulation fast_accumulation, Fp8Scaling scaling)
        : allow_tf32(tf32), fast(fast_accumulation), emulates(card_lacks(scaling)) {
        LLMC_CHECK_LT(cublasLtCreate(&handle), "matrix products");
        workspace = device_malloc(kLtWorkspaceBytes);
    }
    ~Backend() {
        try {
            for (void* memory : {workspace, static_cast<void*>(first), static_cast<void*>(second)})
                if (memory) device_free(memory);
        } catch (...) {  // the device is already lost, and its error reported
        }
        plans.clear();
        cublasLtDestroy(handle);
    }

    Plan& plan_for(const Product& product) {
        const auto [place, is_new] = plans.try_emplace(product);
        if (!is_new) return place->second;
        try {
            make_operation(place->second, product, allow_tf32, fast);
            // The heuristic wants to see that there will be a bias and scales, and how they are aligned: as little as
            // is promised of any pointer.
            const void* example = static_cast<char*>(workspace) + kLtAlignment;
            set_pointers(place->second, product, example, example, example);
            choose_algorithm(place->second, product, handle);
        } catch (...) {
            plans.erase(place);
            throw;
        }
        return place->second;
    }
};

Matmul::Matmul(bool allow_tf32, FastAccumulation fast, Fp8Scaling scaling)
    : scaling_(scaling), backend_(new Backend(allow_tf32, fast, scaling)) {}
Matmul::~Matmul() = default;

bool Matmul::emulates(const Product& product) const { return product.has_block_scales() && backend_->emulates; }

void Matmul::reserve(int N, int C, int OC) {
    Backend& b = *backend_;
    if (!b.emulates) return;
    synchronize_device();
    b.room.cover(N, C, OC);
    for (bf16** memory : {&b.first, &b.second}) {
        if (*memory) device_free(*memory);
        *memory = nullptr;
    }
    b.first = static_cast<bf16*>(device_malloc(b.room.first * sizeof(bf16)));
    b.second = static_cast<bf16*>(device_malloc(b.room.second * sizeof(bf16)));
}
size_t Matmul::reserved_bytes() const { return kLtWorkspaceBytes + backend_->room.bytes(); }
size_t Matmul::planned_bytes(OperandType, const std::vector<LinearShape>& shapes, Fp8Scaling scaling) {
    EmulationSizes room;
    if (card_lacks(scaling))
        for (const LinearShape& s : shapes) room.cover(s.N, s.C, s.OC);
    return kLtWorkspaceBytes + room.bytes();
}

void Matmul::emulate(const Product& product, ProductTensors t, stream_t stream) {
#if LLMC_ENABLE_FP8
    const Gemm g(product);
    const Backend& b = *backend_;
    if (g.first_size() > b.room.first || g.second_size() > b.room.second)
        throw Error(ExitCode::failure, strprintf("%s: call Matmul::reserve(%d, %d, %d) before training",
                                                 product.describe().c_str(), product.N, product.C, product.OC));
    dequantize_blocks(b.first, static_cast<const e4m3*>(t.first), t.first_scale_inv, product.first_scales(), g.rows,
                      g.inner, stream);
    dequantize_blocks(b.second, static_cast<const e4m3*>(t.second), t.second_scale_inv, product.second_scales(),
                      g.columns, g.inner, stream);
    t.first = b.first;
    t.second = b.second;
    submit(emulation_of(product), t, stream);
#endif
}

void Matmul::submit(const Product& product, const ProductTensors& t, stream_t stream) {
    if (emulates(product) && !product.emulated) return emulate(product, t, stream);
    const Plan& plan = backend_->plan_for(product);
    set_pointers(plan, product, t.bias, t.second_scale_inv, t.first_scale_inv);
    const float alpha = 1.0f, beta = product.accumulate ? 1.0f : 0.0f;
    LLMC_CHECK_LT(cublasLtMatmul(backend_->handle, plan.operation, &alpha, t.second, plan.a, t.first, plan.b, &beta,
                                 t.result, plan.result, t.result, plan.result, &plan.algorithm, backend_->workspace,
                                 kLtWorkspaceBytes, stream),
                  product.describe());
}

}  // namespace llmc
#endif
