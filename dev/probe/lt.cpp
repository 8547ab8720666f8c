// Makes the descriptors like llmc/linear/matmul_cuda.cpp, which explains them. Unlike there, cuBLASLt is asked before
// anything is refused, and no status is an error.
// build: per device
#include "dev/probe/lt.h"

#if LLMC_CUDA
#include <vector>

#include "llmc/linear/cublaslt.h"

namespace llmc::probe {
struct LtDirect::State {
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, result = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulAlgo_t chosen = {};
    Algorithm algorithm;
    bool accumulate = false;
    std::string call;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    // Makes a call unless an earlier one has failed; the first failure is remembered.
    template <class F>
    void step(const char* name, F&& make) {
        if (status != CUBLAS_STATUS_SUCCESS) return;
        call = name;
        status = make();
    }
    template <class T>
    void set(const char* name, cublasLtMatmulDescAttributes_t attribute, T value) {
        step(name, [&] { return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value); });
    }
    template <class T>
    void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
        step("cublasLtMatmulPreferenceSetAttribute",
             [&] { return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value); });
    }
    void layout(cublasLtMatrixLayout_t* made, Product::Element element, int rows, int columns) {
        step("cublasLtMatrixLayoutCreate",
             [&] { return cublasLtMatrixLayoutCreate(made, lt_type(element), columns, rows, columns); });
    }
    void clear() {
        if (operation) cublasLtMatmulDescDestroy(operation);
        if (preference) cublasLtMatmulPreferenceDestroy(preference);
        for (cublasLtMatrixLayout_t* one : {&a, &b, &result}) {
            if (*one) cublasLtMatrixLayoutDestroy(*one);
            *one = nullptr;
        }
        operation = nullptr;
        preference = nullptr;
        status = CUBLAS_STATUS_SUCCESS;
        algorithm = {};
    }

    void make_operation(const Case& c, const ProductTensors& t) {
        const Product& p = c.product;
        const Gemm g(p);
        step("cublasLtMatmulDescCreate",
             [&] { return cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F); });
        set("TRANSA", CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N);
        set("TRANSB", CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            set("EPILOGUE", CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set("BIAS_DATA_TYPE", CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_type(bias_element(p)));
            set("BIAS_POINTER", CUBLASLT_MATMUL_DESC_BIAS_POINTER, t.bias);
        }
        if (is_fp8(p.type)) {
            set("FAST_ACCUM", CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(c.fast));
            if (p.has_block_scales())
                step("SCALE_MODE", [&] { return lt_set_scale_modes(operation, p.second_scales(), p.first_scales()); });
            set("A_SCALE_POINTER", CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, t.second_scale_inv);
            set("B_SCALE_POINTER", CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, t.first_scale_inv);
        }
        layout(&a, p.second_element(), g.second_rows, g.second_columns);
        layout(&b, p.first_element(), g.first_rows, g.first_columns);
        layout(&result, p.result_element(), g.rows, g.columns);
        accumulate = p.accumulate;
    }

    void choose() {
        step("cublasLtMatmulPreferenceCreate", [&] { return cublasLtMatmulPreferenceCreate(&preference); });
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kLtWorkspaceBytes);
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (const auto attribute :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            prefer(attribute, kLtAlignment);
        cublasLtMatmulHeuristicResult_t found = {};
        step("cublasLtMatmulAlgoGetHeuristic", [&] {
            // Takes the first proposal, as llmc::Matmul would. If it then refuses to run, that is reported.
            cublasLtMatmulHeuristicResult_t proposed[kLtProposals] = {};
            int count = 0;
            const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, result, result,
                                                                        preference, kLtProposals, proposed, &count);
            if (asked != CUBLAS_STATUS_SUCCESS) return asked;
            for (int i = 0; i < count; i++)
                if (proposed[i].state == CUBLAS_STATUS_SUCCESS) {
                    found = proposed[i];
                    return CUBLAS_STATUS_SUCCESS;
                }
            return CUBLAS_STATUS_NOT_SUPPORTED;
        });
        if (status != CUBLAS_STATUS_SUCCESS) return;
        chosen = found.algo;
        const auto config = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
            int value = -1;
            size_t written = 0;
            cublasLtMatmulAlgoConfigGetAttribute(&chosen, attribute, &value, sizeof value, &written);
            return value;
        };
        algorithm = {config(CUBLASLT_ALGO_CONFIG_ID),
                     config(CUBLASLT_ALGO_CONFIG_TILE_ID),
                     config(CUBLASLT_ALGO_CONFIG_STAGES_ID),
                     config(CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                     config(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                     found.workspaceSize,
                     found.wavesCount};
    }
};

bool LtDirect::available() { return true; }

std::string LtDirect::version() { return lt_version_text(cublasLtGetVersion()); }

LtDirect::LtDirect() : state_(new State) {
    const cublasStatus_t status = cublasLtCreate(&state_->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error(ExitCode::no_resources, "cublasLtCreate: {}", cublasLtGetStatusName(status));
    state_->workspace = device_malloc(kLtWorkspaceBytes);
}
LtDirect::~LtDirect() {
    state_->clear();
    cublasLtDestroy(state_->handle);
    try {
        device_free(state_->workspace);
    } catch (...) {  // the device is already lost and its error reported
    }
}

std::string LtDirect::prepare(const Case& c, const ProductTensors& tensors) {
    state_->clear();
    state_->make_operation(c, tensors);
    state_->choose();
    return cublasLtGetStatusName(state_->status);
}
const std::string& LtDirect::call() const { return state_->call; }
const Algorithm& LtDirect::algorithm() const { return state_->algorithm; }

std::string LtDirect::run(const ProductTensors& t, stream_t stream) {
    const float alpha = 1.0f, beta = state_->accumulate ? 1.0f : 0.0f;
    State& s = *state_;
    s.step("cublasLtMatmul", [&] {
        return cublasLtMatmul(s.handle, s.operation, &alpha, t.second, s.a, t.first, s.b, &beta, t.result, s.result,
                              t.result, s.result, &s.chosen, s.workspace, kLtWorkspaceBytes, stream);
    });
    return cublasLtGetStatusName(s.status);
}

}  // namespace llmc::probe

#else

namespace llmc::probe {

struct LtDirect::State {
    std::string call;
    Algorithm algorithm;
};
bool LtDirect::available() { return false; }
std::string LtDirect::version() { return "none"; }
LtDirect::LtDirect() : state_(new State) {}
LtDirect::~LtDirect() = default;
std::string LtDirect::prepare(const Case&, const ProductTensors&) { return "no cuBLASLt"; }
const std::string& LtDirect::call() const { return state_->call; }
const Algorithm& LtDirect::algorithm() const { return state_->algorithm; }
std::string LtDirect::run(const ProductTensors&, stream_t) { return "no cuBLASLt"; }

}  // namespace llmc::probe
#endif
