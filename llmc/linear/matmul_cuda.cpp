// Matrix products on a GPU with cuBLASLt. Descriptors and algorithm of a product are found once per shape and kept.
//
// cuBLASLt is column-major. A row-major (rows, columns) matrix has the bytes of its transpose, the column-major
// (columns, rows) matrix. So result = op(first) * op(second) is computed as result^T = op(second)^T * op(first)^T, with
// `second` as cuBLASLt's A and `first` as its B. For FP8, where `second` is transposed and `first` is not, that is the
// only layout that Hopper supports (transa T, transb N). If one operand is E5M2, the E4M3 weights or activations are A.
// build: per device
#include "llmc/linear/matmul.h"

#if LLMC_CUDA
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/linear/cublaslt.h"

namespace llmc {

namespace {

void check_lt(cublasStatus_t status, const char* call, const std::string& what, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::no_resources : ExitCode::failure,
                fmt::format("{}:{}: {} failed: {} ({}) [{}]", file, line, call, cublasLtGetStatusName(status),
                            cublasLtGetStatusString(status), what));
}
#define LLMC_CHECK_LT(call, what) check_lt((call), #call, what, __FILE__, __LINE__)

// 90, as on Hopper, if there is no device.
int compute_capability() {
    int device = 0, major = 0, minor = 0;
    const bool found = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
    if (found) return major * 10 + minor;
    cudaGetLastError();
    return 90;
}

bool card_lacks(Fp8Scaling scaling) {
    return scaling != Fp8Scaling::tensor && !Matmul::emulated_because(scaling).empty();
}

// Descriptors of one product, and the algorithms that may run it.
struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, result = nullptr;
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    ProductWay way;
    cublasStatus_t refusal = CUBLAS_STATUS_NOT_SUPPORTED;  // cuBLASLt's last one
    bool noted = false;                                    // stderr says that the product is emulated

    Plan() = default;
    Plan(Plan&&) = delete;
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

// Layout of a row-major matrix for cuBLASLt.
void make_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int rows, int columns, const Product& product) {
    LLMC_CHECK_LT(cublasLtMatrixLayoutCreate(layout, type, columns, rows, columns), product.describe());
}

// The scales of an emulated product's operands are on the device, so the factor of its result must be too. Block scales
// are powers of two and already multiplied into the operands.
bool has_device_factors(const Product& product) { return product.emulated && !product.has_block_scales(); }

// True if cuBLASLt refused the product before doing anything, so that another algorithm may work. Not for
// CUBLAS_STATUS_INVALID_VALUE, which is a mistake of the caller.
bool is_refusal(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
}

// The epilogue does not include GELU. Recomputed activations must have the bits of the first pass, and cuBLASLt's GELU
// differs from our kernel's. Its gain in a training step was measured as 0.7 % (llm.c #591).
void make_operation(Plan& plan, const Product& product, bool allow_tf32, FastAccumulation fast) {
    const Gemm g(product);
    const bool tf32 = allow_tf32 && product.type == OperandType::fp32;
    LLMC_CHECK_LT(
        cublasLtMatmulDescCreate(&plan.operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        product.describe());
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    if (product.bias) {  // one value per row of the column-major result, which is a column of ours
        set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, product);
        set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_type(product.result_element()), product);
    }
    if (has_device_factors(product))
        set(plan.operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE, product);
    if (is_fp8(product.type) && !product.emulated) {  // the attributes are refused for other types
        set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(accumulates_fast(product, fast)),
            product);
        if (product.has_block_scales())
            LLMC_CHECK_LT(lt_set_scale_modes(plan.operation, product.second_scales(), product.first_scales()),
                          product.describe());
    }
    make_layout(&plan.a, lt_type(product.second_element()), g.second_rows, g.second_columns, product);
    make_layout(&plan.b, lt_type(product.first_element()), g.first_rows, g.first_columns, product);
    make_layout(&plan.result, lt_type(product.result_element()), g.rows, g.columns, product);
}

// Scales of C and D are never set. cuBLASLt refuses them for a result that is not FP8, and 13.1 may hang on a scale of
// C.
void set_pointers(const Plan& plan, const Product& product, const void* bias, const void* a_scale_inv,
                  const void* b_scale_inv) {
    if (product.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, product);
    if (!is_fp8(product.type) || product.emulated) return;
    set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a_scale_inv, product);
    set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b_scale_inv, product);
}

// An algorithm as text: its 64 opaque bytes, which "can be trivially serialized and later restored for use with the
// same version of the library" (cuBLAS documentation, cublasLtMatmulAlgo_t).
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
    std::string text;
    for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
    return text;
}
std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
    cublasLtMatmulAlgo_t algorithm;
    constexpr size_t kDigits = 16;
    if (text.size() != std::size(algorithm.data) * kDigits) return std::nullopt;
    for (size_t i = 0; i < std::size(algorithm.data); i++) {
        const char* const begin = text.data() + i * kDigits;
        const auto [end, error] = std::from_chars(begin, begin + kDigits, algorithm.data[i], 16);
        if (error != std::errc{} || end != begin + kDigits) return std::nullopt;
    }
    return algorithm;
}

// A product that is split along its inner dimension must add its parts in a fixed order and in FP32. That leaves no
// reduction, or one through the workspace in compute type. It excludes INPLACE, which adds parts in the order in which
// blocks finish, and OUTPUT_TYPE, which rounds the parts to BF16.
void find_algorithms(Plan& plan, const Product& product, cublasLtHandle_t handle, size_t workspace, int limit) {
    Preference preference;
    LLMC_CHECK_LT(cublasLtMatmulPreferenceCreate(&preference.handle), product.describe());
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace, product);
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, product);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        set(preference, attribute, kLtAlignment, product);

    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(limit));
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.a, plan.b, plan.result, plan.result,
                                       preference.handle, limit, found.data(), &count);
    if (is_refusal(status))
        plan.refusal = status;
    else
        check_lt(status, "cublasLtMatmulAlgoGetHeuristic", product.describe(), __FILE__, __LINE__);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
    for (const cublasLtMatmulHeuristicResult_t& proposal : found)
        if (proposal.state == CUBLAS_STATUS_SUCCESS && proposal.workspaceSize <= workspace)
            plan.algorithms.push_back(proposal.algo);
}

// Lets the plan use only the chosen algorithm. Returns false if there is none, or if the library cannot run it.
bool take_chosen(Plan& plan, const Product& product, cublasLtHandle_t handle, size_t workspace,
                 const std::string& chosen) {
    if (chosen.empty()) return false;
    const std::optional<cublasLtMatmulAlgo_t> algorithm = algorithm_of(chosen);
    cublasLtMatmulHeuristicResult_t result = {};
    if (algorithm &&
        cublasLtMatmulAlgoCheck(handle, plan.operation, plan.a, plan.b, plan.result, plan.result, &*algorithm,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= workspace) {
        plan.algorithms = {*algorithm};
        return true;
    }
    std::fprintf(stderr,
                 "note: %s: cuBLASLt %s does not list the chosen algorithm with %zu MiB of workspace; using the "
                 "library's own choice\n",
                 product.describe().c_str(), lt_version_text(cublasLtGetVersion()).c_str(), workspace >> 20);
    return false;
}

std::string refusal_of(const Plan& plan) {
    if (plan.algorithms.empty())
        return fmt::format("cuBLASLt {} has no algorithm for this matmul on this GPU ({})",
                           lt_version_text(cublasLtGetVersion()), cublasLtGetStatusName(plan.refusal));
    return fmt::format("cuBLASLt {} refuses the {} algorithms that it proposes for this matmul on this GPU ({})",
                       lt_version_text(cublasLtGetVersion()), plan.algorithms.size(),
                       cublasLtGetStatusName(plan.refusal));
}

}  // namespace

struct Matmul::Backend {
    const bool allow_tf32;
    const FastAccumulation fast;
    const bool lacks_scales;  // no block scales: all products with them are emulated
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    std::map<Product, Plan> plans;
    EmulationSizes room;
    bf16 *first = nullptr, *second = nullptr;  // dequantized operands
    float* factors = nullptr;                  // alpha and beta of an emulated product

    Backend(bool tf32, FastAccumulation fast_accumulation, Fp8Scaling scaling)
        : allow_tf32(tf32), fast(fast_accumulation), lacks_scales(card_lacks(scaling)) {
        LLMC_CHECK_LT(cublasLtCreate(&handle), "matmuls");
        allocate_workspace();
    }
    ~Backend() {
        tear_down([this] {
            free_room();
            if (workspace) device_free(workspace);
        });
        plans.clear();
        cublasLtDestroy(handle);
    }

    // Takes the largest workspace for which there is memory.
    void allocate_workspace() {
        for (const size_t bytes : kLtWorkspaces) {
            try {
                workspace = bytes > 0 ? device_malloc(bytes) : nullptr;
                workspace_bytes = bytes;
                break;
            } catch (const Error& error) {
                if (error.code() != ExitCode::no_resources) throw;
            }
        }
        if (workspace_bytes < kLtWorkspaceBytes)
            std::fprintf(stderr,
                         "note: GPU memory is short: matmuls have %zu MiB of workspace instead of %zu; they may be "
                         "slower, and their bits may differ\n",
                         workspace_bytes >> 20, kLtWorkspaceBytes >> 20);
    }

    void free_room() {
        for (void* memory : {static_cast<void*>(first), static_cast<void*>(second), static_cast<void*>(factors)})
            if (memory) device_free(memory);
        first = second = nullptr;
        factors = nullptr;
    }
    void allocate_room(const EmulationSizes& sizes) {
        synchronize_device();
        free_room();
        room = sizes;
        first = static_cast<bf16*>(device_malloc(room.first * sizeof(bf16)));
        second = static_cast<bf16*>(device_malloc(room.second * sizeof(bf16)));
        factors = static_cast<float*>(device_malloc(2 * sizeof(float)));
    }

    void describe(Plan& plan, const Product& product) const {
        make_operation(plan, product, allow_tf32, fast);
        // The heuristic needs to know that there will be a bias and scales, and their alignment, which is the least
        // that any pointer has.
        const void* example = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(workspace) + kLtAlignment);
        set_pointers(plan, product, example, example, example);
    }
    Plan& plan_for(const Product& product, const std::string& chosen) {
        const auto [place, is_new] = plans.try_emplace(product);
        Plan& plan = place->second;
        if (!is_new) return plan;
        try {
            describe(plan, product);
            if (!take_chosen(plan, product, handle, workspace_bytes, chosen))
                find_algorithms(plan, product, handle, workspace_bytes, kLtProposals);
            const bool can_be_emulated = is_fp8(product.type) && !product.emulated;
            plan.way = {static_cast<int>(plan.algorithms.size()), can_be_emulated};
        } catch (...) {
            plans.erase(place);
            throw;
        }
        return plan;
    }
};

Matmul::Matmul(bool allow_tf32, FastAccumulation fast, Fp8Scaling scaling)
    : allow_tf32_(allow_tf32), fast_(fast), scaling_(scaling) {}
Matmul::~Matmul() = default;

Matmul::Backend& Matmul::backend() {
    if (!backend_) backend_ = std::make_unique<Backend>(allow_tf32_, fast_, scaling_);
    return *backend_;
}

std::vector<std::string> Matmul::proposals(const Product& product, int limit) {
    Plan plan;
    backend().describe(plan, product);
    find_algorithms(plan, product, backend().handle, backend().workspace_bytes, limit);
    std::vector<std::string> texts;
    for (const cublasLtMatmulAlgo_t& algorithm : plan.algorithms) texts.push_back(text_of(algorithm));
    return texts;
}

bool Matmul::emulates(const Product& product) { return product.has_block_scales() && backend().lacks_scales; }

void Matmul::forget_plans() {
    if (backend_) backend_->plans.clear();
}

std::string Matmul::emulated_because(Fp8Scaling scaling) {
    return why_not_native(scaling, lt_versions(), compute_capability());
}

void Matmul::reserve(const LinearShape& shape) {
    if (!card_lacks(scaling_)) return;
    EmulationSizes sizes = backend().room;
    sizes.cover(shape);
    backend_->allocate_room(sizes);
}
size_t Matmul::reserved_bytes() const { return backend_ ? backend_->workspace_bytes + backend_->room.bytes() : 0; }
size_t Matmul::planned_bytes(const std::vector<LinearShape>& shapes, Fp8Scaling scaling) {
    EmulationSizes room;
    if (card_lacks(scaling))
        for (const LinearShape& shape : shapes) room.cover(shape);
    return kLtWorkspaceBytes + room.bytes();
}

void Matmul::emulate(const Product& product, ProductTensors t, stream_t stream) {
    const Gemm g(product);
    Backend& b = backend();
    EmulationSizes needed = b.room;
    needed.cover(g);
    if (needed.bytes() > b.room.bytes()) {
        if (b.lacks_scales)
            throw Error(ExitCode::failure, product.describe() + ": call Matmul::reserve() for this layer");
        b.allocate_room(needed);
    }
    const bool blocks = product.has_block_scales();
    const auto widen = [&]<class F8>(bf16* to, const F8* codes, const void* scales, ScaleLayout layout, int rows) {
        dequantize(to, codes, blocks ? scales : nullptr, layout, rows, g.inner, stream);
    };
    if (product.first_element() == Product::Element::e5m2)
        widen(b.first, static_cast<const e5m2*>(t.first), t.first_scale_inv, product.first_scales(), g.rows);
    else
        widen(b.first, static_cast<const e4m3*>(t.first), t.first_scale_inv, product.first_scales(), g.rows);
    widen(b.second, static_cast<const e4m3*>(t.second), t.second_scale_inv, product.second_scales(), g.columns);
    if (!blocks)
        product_factors(b.factors, static_cast<const float*>(t.first_scale_inv),
                        static_cast<const float*>(t.second_scale_inv), product.accumulate ? 1.0f : 0.0f, stream);
    t.first = b.first;
    t.second = b.second;
    Product emulated = product;
    emulated.emulated = true;
    submit(emulated, t, stream);
}

bool Matmul::submit(const Product& product, const ProductTensors& t, stream_t stream) {
    Backend& b = backend();
    if (!product.emulated && emulates(product)) {
        emulate(product, t, stream);
        return true;
    }
    Plan& plan = b.plan_for(product, chosen(product));
    const float host_factors[] = {t.factor, product.accumulate ? 1.0f : t.addend_factor};
    const void* const addend = t.addend ? t.addend : t.result;
    const float* factors = has_device_factors(product) ? b.factors : host_factors;
    const auto attempt = [&](int i) {
        set_pointers(plan, product, t.bias, t.second_scale_inv, t.first_scale_inv);
        const cublasStatus_t status = cublasLtMatmul(b.handle, plan.operation, factors, t.second, plan.a, t.first,
                                                     plan.b, factors + 1, addend, plan.result, t.result, plan.result,
                                                     &plan.algorithms[i], b.workspace, b.workspace_bytes, stream);
        if (!is_refusal(status)) check_lt(status, "cublasLtMatmul", product.describe(), __FILE__, __LINE__);
        plan.refusal = status;
        if (waits_after_work()) after_work(stream, {product.describe().c_str(), "", 0});
        return status == CUBLAS_STATUS_SUCCESS;
    };
    const auto emulate_it = [&] {
        if (!plan.noted) std::fprintf(stderr, "%s\n", emulation_note(product, refusal_of(plan)).c_str());
        plan.noted = true;
        emulate(product, t, stream);
    };
    if (!plan.way.run(attempt, emulate_it))
        throw Error(ExitCode::failure,
                    product.describe() + ": " + refusal_of(plan) + "; CUBLASLT_LOG_LEVEL=5 prints its reason");
    return plan.way.emulated();
}

}  // namespace llmc
#endif
