// The functions of cuBLASLt that train_gpt calls.
#include <cublasLt.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/cublaslt/algorithms.h"
#include "dev/virtual_gpu/cublaslt/descriptors.h"
#include "dev/virtual_gpu/cublaslt/product.h"
#include "dev/virtual_gpu/cublaslt/refusals.h"
#include "dev/virtual_gpu/cublaslt/rules.h"
#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/planned_faults.h"

namespace virtual_gpu {
namespace {

thread_local std::string refusal;

cublasStatus_t refuse(cublasStatus_t status, const std::string& why) {
    refusal = why;
    static const char* const level = std::getenv("CUBLASLT_LOG_LEVEL");
    if (level && std::atoi(level) > 0) report("cuBLASLt: %s: %s", cublasLtGetStatusName(status), why.c_str());
    return status;
}
cublasStatus_t invalid(const std::string& why) { return refuse(CUBLAS_STATUS_INVALID_VALUE, why); }

template <class T, class Handle>
T& of(Handle handle) {
    return *reinterpret_cast<T*>(handle);
}

template <class T>
cublasStatus_t set(T& field, const void* value, size_t bytes) {
    if (!value || bytes != sizeof field) return invalid("the size of an attribute");
    std::memcpy(&field, value, sizeof field);
    return CUBLAS_STATUS_SUCCESS;
}

// Returns INVALID_VALUE, NOT_SUPPORTED or success.
cublasStatus_t check(const Product& p, const uint32_t (&alignment)[4]) {
    if (!is_product(p)) return invalid("matrices that do not go together");
    const std::string why = why_not_supported(p, alignment, card().capability, options().cublas_version);
    if (!why.empty()) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    if (lies("refuse", number_of(p), describe(p), 0))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "on purpose: VIRTUAL_GPU_FAULT=refuse, " + describe(p));
    return CUBLAS_STATUS_SUCCESS;
}

bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uint64_t>(p) % bytes == 0; }

cublasStatus_t check_pointers(const ProductCall& call, const Algorithm& algorithm) {
    const Product& p = call.product;
    const Operation& o = p.operation;
    const void* const matrices[] = {call.a, call.b, call.c ? call.c : call.d, call.d};
    const cudaDataType_t types[] = {p.a.type, p.b.type, p.c.type, p.d.type};
    for (int i = 0; i < 4; i++) {
        const size_t promised = std::max<size_t>(algorithm.alignment[i], bytes_of(types[i]));
        if (!matrices[i]) return invalid(format("no address of %c", "ABCD"[i]));
        if (!is_aligned(matrices[i], promised))
            return invalid(
                format("%c at %p is not aligned to the %zu bytes promised", "ABCD"[i], matrices[i], promised));
    }
    const bool reads_c = o.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE || call.beta != 0;
    if (reads_c && !call.c) return invalid("no address of C, which is added");
    if (reads_c && call.c == call.d && !(p.c == p.d)) return invalid("C in D's place, but described otherwise");
    if (!is_aligned(call.workspace, 256)) return invalid("a workspace that is not aligned to 256 bytes");
    if (call.workspace_bytes < algorithm.workspace || (algorithm.workspace && !call.workspace))
        return invalid("a workspace smaller than the algorithm needs");
    const int version = options().cublas_version;
    if (!is_aligned(o.a_scale, scale_alignment(o.a_mode, version)) ||
        !is_aligned(o.b_scale, scale_alignment(o.b_mode, version)))
        return invalid("scales that are not aligned");
    if (o.epilogue == CUBLASLT_EPILOGUE_BIAS && !o.bias) return invalid("no bias");
    return CUBLAS_STATUS_SUCCESS;
}

// The algorithm that a call names, or the library's default.
cublasStatus_t algorithm_of(const Product& p, const cublasLtMatmulAlgo_t* given, Algorithm& algorithm) {
    algorithm = default_algorithm(p);
    std::string why;
    const cublasStatus_t status = given ? restore(*given, p, algorithm, why) : CUBLAS_STATUS_SUCCESS;
    return status == CUBLAS_STATUS_SUCCESS ? status : refuse(status, why);
}

Lie lie_of(const Product& p, const Algorithm& algorithm) {
    if (lies("wrong-product", number_of(p), describe(p), algorithm.id)) return Lie::tile;
    return lies("unsteady-product", number_of(p), describe(p), algorithm.id) ? Lie::unsteady : Lie::none;
}

// Properties of an algorithm that are reported next to its bytes.
void describe(const Algorithm& algorithm, cublasLtMatmulHeuristicResult_t& result) {
    result.workspaceSize = algorithm.workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0f;
}

}  // namespace

const std::string& last_refusal() { return refusal; }

}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

// ---- the library ----------------------------------------------------------------------------------------------------

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    if (!handle) return invalid("no place for the handle");
    *handle = reinterpret_cast<cublasLtHandle_t>(new char);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete reinterpret_cast<char*>(handle);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return static_cast<size_t>(options().cublas_version); }

const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED:
            return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED:
            return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH:
            return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_MAPPING_ERROR:
            return "CUBLAS_STATUS_MAPPING_ERROR";
        case CUBLAS_STATUS_EXECUTION_FAILED:
            return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_INTERNAL_ERROR:
            return "CUBLAS_STATUS_INTERNAL_ERROR";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_STATUS_LICENSE_ERROR:
            return "CUBLAS_STATUS_LICENSE_ERROR";
        default:
            return "CUBLAS_STATUS_UNKNOWN";
    }
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "the operation completed successfully";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "an unsupported value or parameter was passed to the function";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "the functionality requested is not supported";
        case CUBLAS_STATUS_EXECUTION_FAILED:
            return "the GPU program failed to execute";
        default:
            return cublasLtGetStatusName(status);
    }
}

// ---- descriptors ----------------------------------------------------------------------------------------------------

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
    if (!operation) return invalid("no place for the descriptor");
    auto* const made = new Operation;
    made->compute = compute;
    made->scale_type = scale_type;
    *operation = reinterpret_cast<cublasLtMatmulDesc_t>(made);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    delete &of<Operation>(operation);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
    Operation& o = of<Operation>(operation);
    const bool has_modes = options().cublas_version >= 120800;  // the attributes exist since this version
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_POINTER_MODE:
            return set(o.pointer_mode, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSA:
            return set(o.transa, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB:
            return set(o.transb, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            return set(o.epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            return set(o.bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
            return set(o.bias_type, value, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
            return set(o.a_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
            return set(o.b_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_C_SCALE_POINTER:
            return set(o.c_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
            return set(o.d_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
            return set(o.fast_accumulation, value, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
            if (has_modes) return set(o.a_mode, value, bytes);
            break;
        case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
            if (has_modes) return set(o.b_mode, value, bytes);
            break;
        default:
            report("cuBLASLt: attribute %d of an operation is not supported", static_cast<int>(attribute));
    }
    return invalid(format("attribute %d of an operation", static_cast<int>(attribute)));
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    if (!layout) return invalid("no place for the layout");
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete &of<Layout>(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    if (!preference) return invalid("no place for the preference");
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete &of<Preference>(preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
    Preference& p = of<Preference>(preference);
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return set(p.workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return set(p.reductions, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return set(p.alignment[0], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return set(p.alignment[1], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return set(p.alignment[2], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return set(p.alignment[3], value, bytes);
        default:
            report("cuBLASLt: preference %d is not supported", static_cast<int>(attribute));
    }
    return invalid(format("preference %d", static_cast<int>(attribute)));
}

// ---- algorithms -----------------------------------------------------------------------------------------------------

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
    if (!handle || !operation || !a || !b || !c || !d || !preference || !found || !count || wanted < 1)
        return invalid("cublasLtMatmulAlgoGetHeuristic without an argument");
    *count = 0;
    const Product p{of<Operation>(operation), of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d)};
    const Preference& wish = of<Preference>(preference);
    const cublasStatus_t status = check(p, wish.alignment);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (const Algorithm& algorithm : proposals(p, wish)) {
        if (*count == wanted) break;
        cublasLtMatmulHeuristicResult_t& result = found[(*count)++];
        result = {};
        result.algo = serialized(algorithm);
        describe(algorithm, result);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
    if (!handle || !operation || !a || !b || !c || !d || !algo || !result)
        return invalid("cublasLtMatmulAlgoCheck without an argument");
    const Product p{of<Operation>(operation), of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d)};
    if (!is_product(p)) return invalid("matrices that do not go together");
    Algorithm algorithm;
    cublasStatus_t status = algorithm_of(p, algo, algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) status = check(p, algorithm.alignment);
    if (status == CUBLAS_STATUS_SUCCESS) describe(algorithm, *result);
    return status;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t bytes, size_t* written) {
    const Way* const way = algo ? way_of(deserialized(*algo)) : nullptr;
    if (!way) return invalid("no algorithm");
    if (attribute < CUBLASLT_ALGO_CONFIG_ID || attribute > CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)
        return invalid("an attribute that algorithms do not have");
    int32_t answer = 0;
    if (attribute == CUBLASLT_ALGO_CONFIG_ID) answer = way->id;
    if (attribute == CUBLASLT_ALGO_CONFIG_TILE_ID) answer = static_cast<int32_t>(way->tile);
    if (attribute == CUBLASLT_ALGO_CONFIG_STAGES_ID) answer = static_cast<int32_t>(way->stages);
    if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) answer = way->splits();
    if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) answer = static_cast<int32_t>(way->reduction);
    const bool is_short =
        attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    const size_t size = is_short ? 2 : 4;
    if (bytes == 0 ? !written : !value || bytes != size) return invalid("the size of an algorithm's attribute");
    if (bytes) std::memcpy(value, &answer, size);
    if (written) *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    if (!handle || !operation || !alpha || !beta || !a_layout || !b_layout || !d_layout)
        return invalid("cublasLtMatmul without an argument");
    ProductCall call;
    call.product = {of<Operation>(operation), of<Layout>(a_layout), of<Layout>(b_layout),
                    of<Layout>(c_layout ? c_layout : d_layout), of<Layout>(d_layout)};
    if (!is_product(call.product)) return invalid("matrices that do not go together");
    Algorithm algorithm;
    cublasStatus_t status = algorithm_of(call.product, algo, algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) status = check(call.product, algorithm.alignment);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    call.a = a, call.b = b, call.c = c, call.d = d;
    if (call.product.operation.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        call.alpha_at = alpha, call.beta_at = beta;
    } else {
        std::memcpy(&call.alpha, alpha, sizeof call.alpha);
        std::memcpy(&call.beta, beta, sizeof call.beta);
    }
    call.workspace = workspace;
    call.workspace_bytes = workspace_bytes;
    call.workspace_written = algorithm.workspace;
    const Way& way = *way_of(algorithm);
    call.bounds = part_bounds(call.product, way);
    call.rounds_parts = way.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    status = check_pointers(call, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    call.lie = lie_of(call.product, algorithm);
    const Product& p = call.product;
    const std::string what = format("cublasLtMatmul %llu x %llu x %llu", static_cast<unsigned long long>(p.m()),
                                    static_cast<unsigned long long>(p.n()), static_cast<unsigned long long>(p.k()));
    return submit(stream, what, [call] { run_product(call); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
