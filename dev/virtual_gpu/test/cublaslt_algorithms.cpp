// The heuristic's algorithms: different sums, each with its own bits, their serialized bytes in other processes, and
// the answers of AlgoCheck.
#include <cblas.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/cublaslt/refusals.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/lt_call.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

constexpr const char* kBytes = "TEST_ALGORITHM";

// A (rows, columns) matrix of BF16 numbers whose sums are not exact.
LtMatrix uneven_matrix(uint64_t rows, uint64_t columns, unsigned seed) {
    LtMatrix matrix{CUDA_R_16BF, rows, columns, {}};
    std::mt19937 random(seed);
    std::vector<uint16_t> halves(rows * columns);
    for (uint16_t& half : halves) {
        half = bf16_of(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
        matrix.values.push_back(float_of_bf16(half));
    }
    matrix.device = lt_device(halves.data(), halves.size() * 2);
    return matrix;
}

// A TN product of BF16 operands, (64, 32) over k.
struct Uneven {
    LtMatrix a, b, d;
    LtCall call;
    explicit Uneven(uint64_t k = 256, cudaDataType_t type = CUDA_R_32F, uint64_t n = 32)
        : a(uneven_matrix(k, 64, 1)),
          b(uneven_matrix(k, n, 2)),
          d(lt_matrix(type, 64, n, 3)),
          call(a, b, d, true, false) {}
    ~Uneven() { lt_free({a.device, b.device, d.device}); }

    std::vector<float> run_with(int proposal) {
        std::swap(call.found[0], call.found[proposal]);
        CHECK(call.run() == kSuccess);
        std::swap(call.found[0], call.found[proposal]);
        return lt_read(d);
    }
};

template <class T>
T attribute(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t which) {
    T value{};
    size_t written = 0;
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, which, &value, sizeof value, &written) == kSuccess);
    CHECK(written == sizeof value);
    return value;
}
int id_of(const cublasLtMatmulHeuristicResult_t& found) {
    return attribute<int32_t>(found.algo, CUBLASLT_ALGO_CONFIG_ID);
}
std::vector<int> ids(LtCall& call) {
    CHECK(call.find() == kSuccess);
    std::vector<int> all;
    for (int i = 0; i < call.count; i++) all.push_back(id_of(call.found[i]));
    return all;
}

std::string hexadecimal(const void* data, size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; i++) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<const uint8_t*>(data)[i]);
        text += digits;
    }
    return text;
}
cublasLtMatmulAlgo_t algorithm_of(const std::string& digits) {
    cublasLtMatmulAlgo_t algo;
    REQUIRE(digits.size() == 2 * sizeof algo);
    for (size_t i = 0; i < sizeof algo; i++)
        reinterpret_cast<uint8_t*>(&algo)[i] =
            static_cast<uint8_t>(std::strtoul(digits.substr(2 * i, 2).c_str(), nullptr, 16));
    return algo;
}

cublasStatus_t check(LtCall& call, const cublasLtMatmulAlgo_t& algo, cublasLtMatmulHeuristicResult_t& result) {
    return cublasLtMatmulAlgoCheck(call.handle, call.operation, call.layouts[0], call.layouts[1], call.layouts[2],
                                   call.layouts[2], &algo, &result);
}

}  // namespace

TEST_CASE("virtual_gpu cublaslt algorithms: each has its own bits and repeats them") {
    for (const char* arithmetic : {"fp32", "hopper"}) {
        if (!is_child()) {
            expect_child({{"VIRTUAL_GPU_ARITHMETIC", arithmetic}});
            // A core type that every x86-64 has, and whose OpenBLAS splits 256 elements into halves.
            expect_child({{"VIRTUAL_GPU_ARITHMETIC", arithmetic}, {"OPENBLAS_CORETYPE", "Prescott"}});
            continue;
        }
        Uneven p;
        CHECK(ids(p.call) == std::vector<int>{1, 2, 3, 4});
        std::vector<double> magnitudes(64 * 32);
        for (size_t i = 0; i < magnitudes.size(); i++)
            for (size_t k = 0; k < 256; k++)
                magnitudes[i] += std::fabs(p.a.values[i % 64 * 256 + k] * p.b.values[i / 64 * 256 + k]);
        const std::vector<double> sums = lt_reference(p.a, p.b, true, false);
        std::set<std::vector<float>> all;
        for (int i = 0; i < p.call.count; i++) {
            const std::vector<float> first = p.run_with(i);
            CHECK(p.run_with(i) == first);
            all.insert(first);
            // A sum of 256 numbers. Each addition errs by at most one unit in the last place (tensor cores truncate) of
            // a part of the magnitudes. Aligned products are truncated two bits below FP32's last.
            int wrong = 0;
            for (size_t at = 0; at < sums.size(); at++)
                wrong += !(std::fabs(first[at] - sums[at]) <= 2 * 256 * 0x1p-23 * magnitudes[at]);
            CHECK(wrong == 0);
        }
        CHECK(all.size() == 4);
        return;
    }
}

TEST_CASE("virtual_gpu cublaslt algorithms: the first is one sum over k") {
    Uneven p;
    std::vector<float> expected(64 * 32);
    cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, 64, 32, 256, 1, p.a.values.data(), 256, p.b.values.data(), 256,
                0, expected.data(), 64);
    CHECK(p.call.find() == kSuccess);
    CHECK(p.run_with(0) == expected);
    CHECK(p.run_with(1) != expected);
    p.call.workspace_bytes = 0;
    CHECK(p.call.find() == kSuccess);
    CHECK(p.run_with(0) == expected);
}

TEST_CASE("virtual_gpu cublaslt algorithms: their configuration") {
    Uneven p(256, CUDA_R_16BF);
    CHECK(ids(p.call) == std::vector<int>{1, 2, 3, 4, 5});
    const int32_t splits[] = {1, 1, 2, 3, 2};
    const uint32_t schemes[] = {CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_NONE,
                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE};
    const size_t workspaces[] = {1 << 20, 0, 2 * 64 * 32 * 4, 3 * 64 * 32 * 4, 2 * 64 * 32 * 2};
    for (int i = 0; i < 5; i++) {
        const cublasLtMatmulAlgo_t& algo = p.call.found[i].algo;
        CHECK(p.call.found[i].workspaceSize == workspaces[i]);
        CHECK(attribute<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == splits[i]);
        CHECK(attribute<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) == schemes[i]);
        CHECK(attribute<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID) != CUBLASLT_MATMUL_TILE_UNDEFINED);
        CHECK(attribute<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID) != CUBLASLT_MATMUL_STAGES_UNDEFINED);
        CHECK(attribute<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == 0);
    }
    const cublasLtMatmulAlgo_t& algo = p.call.found[0].algo;
    int32_t id = 0;
    size_t size = 0;
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, nullptr, 0, &size) == kSuccess);
    CHECK(size == 4);
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, nullptr, 0, nullptr) == kInvalid);
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, &id, 2, &size) == kInvalid);
    const cublasLtMatmulAlgo_t none = {};
    CHECK(cublasLtMatmulAlgoConfigGetAttribute(&none, CUBLASLT_ALGO_CONFIG_ID, &id, 4, &size) == kInvalid);
}

TEST_CASE("virtual_gpu cublaslt algorithms: only allowed reductions and workspace") {
    Uneven p(256, CUDA_R_16BF);
    p.call.reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    CHECK(ids(p.call) == std::vector<int>{1, 2});
    p.call.reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    CHECK(ids(p.call) == std::vector<int>{1, 2, 3, 4});
    p.call.reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    p.call.workspace_bytes = 3 * 64 * 32 * 4 - 1;
    CHECK(ids(p.call) == std::vector<int>{1, 2, 3, 5});
    CHECK(p.call.found[0].workspaceSize == 0);
    p.call.workspace_bytes = 0;
    CHECK(ids(p.call) == std::vector<int>{1, 2});
    Uneven short_one(16), shortest(8);  // two units of eight, and one
    CHECK(ids(short_one.call) == std::vector<int>{1, 2, 3});
    CHECK(ids(shortest.call) == std::vector<int>{1});
}

TEST_CASE("virtual_gpu cublaslt algorithms: another order") {
    const auto expected = [](const char* order) -> std::vector<int> {
        if (!std::strcmp(order, "reversed")) return {4, 3, 2, 1};
        return !std::strcmp(order, "1") ? std::vector<int>{2, 3, 4, 1} : std::vector<int>{3, 4, 1, 2};
    };
    if (is_child()) {
        Uneven p;
        CHECK(ids(p.call) == expected(std::getenv("VIRTUAL_GPU_HEURISTIC")));
        return;
    }
    for (const char* order : {"reversed", "1", "6"}) expect_child({{"VIRTUAL_GPU_HEURISTIC", order}});
    const Child child = run_child({{"VIRTUAL_GPU_HEURISTIC", "backwards"}});
    CHECK(child.status == 2 << 8);
}

TEST_CASE("virtual_gpu cublaslt algorithms: their bytes say the same in another process") {
    if (is_child()) {
        Uneven other(128), p;
        CHECK(other.call.find() == kSuccess);  // another shape comes first here
        p.call.found[0].algo = algorithm_of(std::getenv(kBytes));
        const std::vector<float> result = p.run_with(0);
        std::printf("%s\n", hexadecimal(result.data(), 256).c_str());
        return;
    }
    Uneven p;
    CHECK(p.call.find() == kSuccess);
    for (int i = 0; i < p.call.count; i++) {
        const std::vector<float> result = p.run_with(i);
        const std::string bytes = hexadecimal(&p.call.found[i].algo, sizeof p.call.found[i].algo);
        expect_child({{kBytes, bytes}, {"VIRTUAL_GPU_HEURISTIC", "reversed"}},
                     {hexadecimal(result.data(), 256).c_str()});
    }
}

TEST_CASE("virtual_gpu cublaslt algorithms: bytes for another card and of another version") {
    Uneven p;
    cublasLtMatmulHeuristicResult_t result = {};
    if (is_child()) {
        const cublasLtMatmulAlgo_t algo = algorithm_of(std::getenv(kBytes));
        const bool other_card = std::getenv("VIRTUAL_GPU_CARD");
        const cublasStatus_t status = other_card ? CUBLAS_STATUS_ARCH_MISMATCH : kInvalid;
        CHECK(check(p.call, algo, result) == status);
        p.call.found[0].algo = algo;
        CHECK(p.call.run() == status);
        CHECK(last_refusal() ==
              (other_card ? "an algorithm of another compute capability" : "an algorithm of another version"));
        return;
    }
    CHECK(p.call.find() == kSuccess);
    const std::string bytes = hexadecimal(&p.call.found[0].algo, sizeof p.call.found[0].algo);
    expect_child({{kBytes, bytes}, {"VIRTUAL_GPU_CARD", "sm_80"}});
    expect_child({{kBytes, bytes}, {"VIRTUAL_GPU_CUBLAS", "130100"}});
}

TEST_CASE("virtual_gpu cublaslt algorithms: AlgoCheck") {
    Uneven p, other(128);
    CHECK(p.call.find() == kSuccess);
    CHECK(other.call.find() == kSuccess);
    cublasLtMatmulHeuristicResult_t result;
    for (int i = 0; i < p.call.count; i++) {
        std::memset(&result, 0x55, sizeof result);
        const cublasLtMatmulAlgo_t untouched = result.algo;
        CHECK(check(p.call, p.call.found[i].algo, result) == kSuccess);
        CHECK(result.state == kSuccess);
        CHECK(result.workspaceSize == p.call.found[i].workspaceSize);
        CHECK(result.wavesCount == p.call.found[i].wavesCount);
        CHECK(std::memcmp(&result.algo, &untouched, sizeof untouched) == 0);
    }
    CHECK(check(p.call, other.call.found[0].algo, result) == kInvalid);
    CHECK(last_refusal() == "an algorithm of another product");
    CHECK(check(p.call, cublasLtMatmulAlgo_t{}, result) == kInvalid);
    CHECK(last_refusal() == "no algorithm");
    // BF16 operands are not multiplied in TF32.
    LtCall tf32(p.a, p.b, p.d, true, false, CUBLAS_COMPUTE_32F_FAST_TF32);
    CHECK(check(tf32, p.call.found[0].algo, result) == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_CASE("virtual_gpu cublaslt algorithms: FP8 with scales of blocks that a part cuts apart") {
    for (const char* arithmetic : {"fp32", "hopper"}) {
        if (!is_child()) {
            expect_child({{"VIRTUAL_GPU_ARITHMETIC", arithmetic}});
            continue;
        }
        LtMatrix a = lt_matrix(CUDA_R_8F_E4M3, 160, 32, 1), b = lt_matrix(CUDA_R_8F_E4M3, 160, 16, 2);
        LtMatrix d = lt_matrix(CUDA_R_32F, 32, 16, 3);
        std::vector<float> scales_a, scales_b;
        for (int i = 0; i < 2 * 32; i++) scales_a.push_back(std::ldexp(1.0f, i % 3));
        for (int i = 0; i < 2 * 16; i++) scales_b.push_back(std::ldexp(1.0f, -(i % 2)));
        const void* const on_device[] = {lt_device(scales_a.data(), 256), lt_device(scales_b.data(), 128)};
        LtCall call(a, b, d, true, false);
        const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        CHECK(call.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode) == kSuccess);
        CHECK(call.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode) == kSuccess);
        CHECK(call.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, on_device[0]) == kSuccess);
        CHECK(call.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, on_device[1]) == kSuccess);
        CHECK(ids(call) == std::vector<int>{1, 2, 3, 4});
        std::vector<float> expected(32 * 16);  // small whole numbers, whose sums are exact in any order
        for (size_t i = 0; i < expected.size(); i++)
            for (size_t k = 0; k < 160; k++)
                expected[i] += a.values[i % 32 * 160 + k] * scales_a[k / 128 * 32 + i % 32] *
                               b.values[i / 32 * 160 + k] * scales_b[k / 128 * 16 + i / 32];
        for (int i = 0; i < call.count; i++) {
            std::swap(call.found[0], call.found[i]);
            CHECK(call.run() == kSuccess);
            CHECK(lt_read(d) == expected);
        }
        return;
    }
}
