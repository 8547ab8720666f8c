// Products through cuBLASLt's functions: results, scales, epilogues, and the checks of a call. Operands are small whole
// numbers, so every sum is exact and results are equal to the last bit.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/cublaslt/refusals.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/lt_call.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

// The number of elements that differ from `expected` of the sum and its place.
template <class F>
int wrong_elements(const LtMatrix& d, const std::vector<double>& sums, F expected) {
    const std::vector<float> got = lt_read(d);
    int wrong = 0;
    for (size_t i = 0; i < got.size(); i++) wrong += got[i] != static_cast<float>(expected(sums[i], i));
    return wrong;
}
int wrong_elements(const LtMatrix& d, const std::vector<double>& sums) {
    return wrong_elements(d, sums, [](double sum, size_t) { return sum; });
}

// A TN product of FP8 operands, (32, 48) over 256.
struct Fp8 {
    LtMatrix a, b, d;
    Fp8(cudaDataType_t b_type = CUDA_R_8F_E5M2, uint64_t m = 32, uint64_t n = 48, uint64_t k = 256)
        : a(lt_matrix(CUDA_R_8F_E4M3, k, m, 1)), b(lt_matrix(b_type, k, n, 2)), d(lt_matrix(CUDA_R_32F, m, n, 3)) {}
    ~Fp8() { lt_free({a.device, b.device, d.device}); }
    std::vector<double> sums() const { return lt_reference(a, b, true, false); }
};

template <class T>
T* device_of(const std::vector<T>& values) {
    return static_cast<T*>(lt_device(values.data(), values.size() * sizeof(T)));
}

// The sums, with a scale for every (outer, inner) of both operands.
template <class SA, class SB>
std::vector<double> scaled_sums(const Fp8& p, SA scale_a, SB scale_b) {
    std::vector<double> sums(p.d.rows * p.d.columns);
    for (uint64_t n = 0; n < p.d.columns; n++)
        for (uint64_t m = 0; m < p.d.rows; m++)
            for (uint64_t k = 0; k < p.a.rows; k++)
                sums[n * p.d.rows + m] += static_cast<double>(p.a.values[m * p.a.rows + k]) * scale_a(m, k) *
                                          p.b.values[n * p.b.rows + k] * scale_b(n, k);
    return sums;
}

void set_scales(LtCall& call, int32_t a_mode, const void* a, int32_t b_mode, const void* b) {
    CHECK(call.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a_mode) == kSuccess);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b_mode) == kSuccess);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a) == kSuccess);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b) == kSuccess);
}

}  // namespace

TEST_CASE("virtual_gpu cublaslt: products of all types and layouts") {
    for (const cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF})
        for (int layout = 0; layout < 4; layout++) {
            const bool ta = layout & 1, tb = layout & 2;
            LtMatrix a = ta ? lt_matrix(type, 9, 7, 1) : lt_matrix(type, 7, 9, 1);
            LtMatrix b = tb ? lt_matrix(type, 5, 9, 2) : lt_matrix(type, 9, 5, 2);
            LtMatrix d = lt_matrix(CUDA_R_32F, 7, 5, 3);
            const std::vector<float> before = d.values;
            const std::vector<double> sums = lt_reference(a, b, ta, tb);
            LtCall call(a, b, d, ta, tb);
            CHECK(call.find() == kSuccess);
            CHECK(call.run() == kSuccess);
            CHECK(wrong_elements(d, sums) == 0);
            CHECK(call.run(2, 0.5) == kSuccess);
            CHECK(wrong_elements(d, sums, [](double sum, size_t) { return 2.5 * sum; }) == 0);
            lt_free({a.device, b.device, d.device});
        }
}

TEST_CASE("virtual_gpu cublaslt: a bias a row and alpha and beta of the device") {
    LtMatrix a = lt_matrix(CUDA_R_16BF, 16, 24, 1), b = lt_matrix(CUDA_R_16BF, 24, 8, 2);
    LtMatrix d = lt_matrix(CUDA_R_16BF, 16, 8, 3);
    std::vector<uint16_t> bias(16);
    for (size_t i = 0; i < bias.size(); i++) bias[i] = bf16_of(static_cast<float>(i) - 5);
    void* const on_device = device_of(bias);
    const std::vector<float> before = d.values, factors{2, 3};
    float* const f = device_of(factors);
    LtCall call(a, b, d, false, false);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) == kSuccess);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kInvalid);
    CHECK(last_refusal() == "no bias");
    CHECK(call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, on_device) == kSuccess);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t{CUBLASLT_POINTER_MODE_DEVICE}) == kSuccess);
    CHECK(call.run_at(f, f + 1) == kSuccess);
    const auto expected = [&](double sum, size_t i) {
        return float_of_bf16(bf16_of(static_cast<float>(2 * sum + 3 * before[i] + static_cast<double>(i % 16) - 5)));
    };
    CHECK(wrong_elements(d, lt_reference(a, b, false, false), expected) == 0);
    lt_free({a.device, b.device, d.device, on_device, f});
}

TEST_CASE("virtual_gpu cublaslt: FP8 with a scale for each tensor") {
    Fp8 p;
    float* const scales = device_of(std::vector<float>{0.5f, 0, 0, 0, -4.0f});  // 16 bytes apart
    LtCall call(p.a, p.b, p.d, true, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(wrong_elements(p.d, p.sums()) == 0);
    set_scales(call, 0, scales, 0, scales + 4);
    CHECK(call.run() == kSuccess);
    CHECK(wrong_elements(p.d, p.sums(), [](double sum, size_t) { return -2 * sum; }) == 0);
    set_scales(call, 0, scales, 0, scales + 1);
    CHECK(call.run() == kInvalid);  // 13.0 requires 16 bytes
    CHECK(last_refusal() == "scales that are not aligned");
    CHECK(call.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int32_t{1}) == kInvalid);  // the attribute is an int8
    lt_free({scales});
}

TEST_CASE("virtual_gpu cublaslt: an FP8 result is scaled and saturates") {
    Fp8 p(CUDA_R_8F_E4M3);
    LtMatrix d = lt_matrix(CUDA_R_8F_E4M3, 32, 48, 3), c = lt_matrix(CUDA_R_16BF, 32, 48, 4);
    float* const scale = device_of(std::vector<float>{4.0f});
    LtCall call(p.a, p.b, d, true, false);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, static_cast<const void*>(scale)) == kSuccess);
    cublasLtMatrixLayout_t c_layout = nullptr;
    CHECK(cublasLtMatrixLayoutCreate(&c_layout, CUDA_R_16BF, 32, 48, 32) == kSuccess);
    const float one = 1;
    CHECK(cublasLtMatmul(call.handle, call.operation, &one, p.a.device, call.layouts[0], p.b.device, call.layouts[1],
                         &one, c.device, c_layout, d.device, call.layouts[2], nullptr, nullptr, 0,
                         nullptr) == kSuccess);
    const auto expected = [&](double sum, size_t i) {
        return float_of_e4m3(e4m3_of(static_cast<float>(4 * (sum + c.values[i]))));
    };
    CHECK(wrong_elements(d, p.sums(), expected) == 0);
    cublasLtMatrixLayoutDestroy(c_layout);
    lt_free({d.device, c.device, scale});
}

TEST_CASE("virtual_gpu cublaslt: FP8 with scales of rows and of 128 elements") {
    Fp8 p(CUDA_R_8F_E4M3, 160, 144, 272);  // no multiples of 128
    const auto power = [](uint64_t i) { return std::ldexp(1.0f, static_cast<int>(i * 7 % 5) - 2); };
    std::vector<float> rows, columns, vectors_a(3 * 160), vectors_b(3 * 144), tiles(4 * 2, NAN);
    for (uint64_t i = 0; i < 160; i++) rows.push_back(power(i));
    for (uint64_t i = 0; i < 144; i++) columns.push_back(power(i + 1));
    for (uint64_t i = 0; i < vectors_a.size(); i++) vectors_a[i] = power(i);
    for (uint64_t i = 0; i < vectors_b.size(); i++) vectors_b[i] = power(i + 3);
    for (uint64_t o = 0; o < 2; o++)
        for (uint64_t l = 0; l < 3; l++) tiles[o * 4 + l] = power(o * 3 + l);
    float *const r = device_of(rows), *const c = device_of(columns), *const va = device_of(vectors_a),
                 *const vb = device_of(vectors_b), *const t = device_of(tiles);
    const auto vector_a = [&](uint64_t o, uint64_t k) { return vectors_a[k / 128 * 160 + o]; };
    const auto vector_b = [&](uint64_t o, uint64_t k) { return vectors_b[k / 128 * 144 + o]; };
    const auto tile = [&](uint64_t o, uint64_t k) { return tiles[o / 128 * 4 + k / 128]; };

    LtCall call(p.a, p.b, p.d, true, false);
    const auto check = [&](int a_mode, const void* a, int b_mode, const void* b, const std::vector<double>& sums) {
        set_scales(call, a_mode, a, b_mode, b);
        CHECK(call.find() == kSuccess);
        CHECK(call.run() == kSuccess);
        CHECK(wrong_elements(p.d, sums) == 0);
    };
    constexpr int kOuter = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                  kVectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                  kTiles = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    check(kOuter, r, kOuter, c,
          scaled_sums(
              p, [&](uint64_t o, uint64_t) { return rows[o]; }, [&](uint64_t o, uint64_t) { return columns[o]; }));
    check(kVectors, va, kVectors, vb, scaled_sums(p, vector_a, vector_b));
    check(kTiles, t, kVectors, vb, scaled_sums(p, tile, vector_b));
    check(kVectors, va, kTiles, t, scaled_sums(p, vector_a, tile));
    set_scales(call, kTiles, t, kTiles, t);
    CHECK(call.find() == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(last_refusal() == "scales of 128 x 128 elements for both operands");
    lt_free({r, c, va, vb, t});
}

namespace {

// The bytes of a table of UE8M0 scales for (outer, 272): three tiles of 128 x 4 along the sum, 0 outside the matrix.
std::vector<uint8_t> mx_table(uint64_t outer, uint64_t inner) {
    std::vector<uint8_t> table((outer + 127) / 128 * ((inner + 127) / 128) * 512);
    for (uint64_t o = 0; o < outer; o++)
        for (uint64_t s = 0; s < (inner + 31) / 32; s++) {
            const uint64_t tile = o / 128 * ((inner + 127) / 128) + s / 4;
            table[tile * 512 + o % 32 * 16 + o % 128 / 32 * 4 + s % 4] = static_cast<uint8_t>(125 + (o + 3 * s) % 5);
        }
    return table;
}
double mx_scale(uint64_t outer, uint64_t inner) {
    return std::ldexp(1.0, static_cast<int>((outer + 3 * (inner / 32)) % 5) - 2);
}
constexpr int32_t kBlocksOf32 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;

}  // namespace

TEST_CASE("virtual_gpu cublaslt: FP8 with scales of 32 elements") {
    if (!is_child()) {
        expect_child({{"VIRTUAL_GPU_CARD", "sm_120"}});
        return expect_child({{"VIRTUAL_GPU_CARD", "sm_100"}, {"VIRTUAL_GPU_ARITHMETIC", "blackwell"}});
    }
    Fp8 p(CUDA_R_8F_E4M3, 144, 32, 272);
    uint8_t *const a = device_of(mx_table(144, 272)), *const b = device_of(mx_table(32, 272));
    LtCall call(p.a, p.b, p.d, true, false);
    set_scales(call, kBlocksOf32, a, kBlocksOf32, b);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(wrong_elements(p.d, scaled_sums(p, mx_scale, mx_scale)) == 0);
    lt_free({a, b});
}

TEST_CASE("virtual_gpu cublaslt: scales beyond the matrix are 0") {
    if (!is_child())
        return expect_child({{"VIRTUAL_GPU_CARD", "sm_100"}}, {"A's scales: byte 511 is beyond the matrix and not 0"});
    Fp8 p(CUDA_R_8F_E4M3, 32, 32, 128);
    std::vector<uint8_t> broken = mx_table(32, 128);
    broken[511] = 127;
    LtCall call(p.a, p.b, p.d, true, false);
    set_scales(call, kBlocksOf32, device_of(broken), kBlocksOf32, device_of(mx_table(32, 128)));
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    CHECK(call.run() == CUBLAS_STATUS_EXECUTION_FAILED);
}

TEST_CASE("virtual_gpu cublaslt: checks of a call") {
    LtMatrix a = lt_matrix(CUDA_R_16BF, 32, 32, 1), b = lt_matrix(CUDA_R_16BF, 32, 32, 2);
    LtMatrix d = lt_matrix(CUDA_R_16BF, 32, 32, 3), e = lt_matrix(CUDA_R_16BF, 64, 32, 4);
    LtCall call(a, b, d, false, false), other(a, a, d, true, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.found[0].workspaceSize > 1000);
    CHECK(call.run() == kSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    uint32_t word = 0;  // the workspace has been overwritten
    CHECK(cudaMemcpy(&word, call.workspace, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(word == 0xffffffffu);

    CHECK(other.find() == kSuccess);
    std::swap(call.found[0], other.found[0]);
    CHECK(call.run() == kInvalid);
    CHECK(last_refusal() == "an algorithm of another product");
    std::swap(call.found[0], other.found[0]);

    call.workspace += 16;
    CHECK(call.run() == kInvalid);
    CHECK(last_refusal() == "a workspace that is not aligned to 256 bytes");
    call.workspace -= 16;
    std::swap(call.workspace_bytes, other.workspace_bytes = 1000);
    CHECK(call.run() == kInvalid);
    CHECK(last_refusal() == "a workspace smaller than the algorithm needs");
    CHECK(call.find() == kSuccess);  // an algorithm without workspace
    CHECK(call.found[0].workspaceSize == 0);
    CHECK(call.run() == kSuccess);

    a.device = static_cast<char*>(a.device) + 64;
    CHECK(call.run() == kInvalid);
    CHECK(last_refusal().find("is not aligned to the 256 bytes promised") != std::string::npos);
    a.device = static_cast<char*>(a.device) - 64;

    // C in D's place has D's layout; elsewhere it may have its own leading dimension.
    cublasLtMatrixLayout_t wide = nullptr;
    CHECK(cublasLtMatrixLayoutCreate(&wide, CUDA_R_16BF, 32, 32, 64) == kSuccess);
    const float one = 1;
    const auto add = [&](const void* c, cublasLtMatrixLayout_t layout) {
        return cublasLtMatmul(call.handle, call.operation, &one, a.device, call.layouts[0], b.device, call.layouts[1],
                              &one, c, layout, d.device, call.layouts[2], nullptr, nullptr, 0, nullptr);
    };
    CHECK(add(d.device, wide) == kInvalid);
    CHECK(last_refusal() == "C in D's place, but described otherwise");
    CHECK(add(nullptr, nullptr) == kInvalid);
    CHECK(add(e.device, wide) == kSuccess);
    const auto expected = [&](double sum, size_t i) {
        return float_of_bf16(bf16_of(static_cast<float>(sum + e.values[i / 32 * 64 + i % 32])));
    };
    CHECK(wrong_elements(d, lt_reference(a, b, false, false), expected) == 0);
    cublasLtMatrixLayoutDestroy(wide);
    lt_free({a.device, b.device, d.device, e.device});
}

TEST_CASE("virtual_gpu cublaslt: operands that were never written") {
    if (!is_child()) return expect_child({}, {"virtual GPU: cublasLtMatmul 32 x 32 x 32: B: byte 0", "never written"});
    LtMatrix a = lt_matrix(CUDA_R_16BF, 32, 32, 1), b = a, d = lt_matrix(CUDA_R_16BF, 32, 32, 3);
    b.device = lt_device(nullptr, 32 * 32 * 2);
    LtCall call(a, b, d, false, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
}

TEST_CASE("virtual_gpu cublaslt: a workspace that is smaller than the call says") {
    if (!is_child()) return expect_child({}, {"the workspace: ", "bytes past an allocation of 2097152 bytes"});
    LtMatrix a = lt_matrix(CUDA_R_16BF, 32, 32, 1), b = lt_matrix(CUDA_R_16BF, 32, 32, 2), d = a;
    LtCall call(a, b, d, false, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    call.workspace_bytes++;  // more than any algorithm uses
    CHECK(call.run() == kSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}

TEST_CASE("virtual_gpu cublaslt: results count as written and beta 0 does not read C") {
    LtMatrix a = lt_matrix(CUDA_R_16BF, 32, 32, 1), b = lt_matrix(CUDA_R_16BF, 32, 32, 2), d = a;
    d.device = lt_device(nullptr, 32 * 32 * 2);
    LtCall call(a, b, d, false, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(lt_read(d).size() == 32 * 32);  // faults if D was not written
    lt_free({a.device, b.device, d.device});
}

TEST_CASE("virtual_gpu cublaslt: an older library knows less") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_CUBLAS", "120600"}});
    CHECK(cublasLtGetVersion() == 120600);
    Fp8 p;
    LtCall call(p.a, p.b, p.d, true, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t{0}) == kInvalid);
}

TEST_CASE("virtual_gpu cublaslt: Hopper keeps 13 bits between additions in FP32") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_ARITHMETIC", "hopper"}});
    // Products of 1 and 2^-6, after one of 2^8, whose last bit of 13 is 2^-5.
    std::vector<uint8_t> a(512 * 16, e4m3_of(1.0f)), b(512 * 16, e4m3_of(0x1p-6f));
    for (size_t column = 0; column < 16; column++) b[column * 512] = e4m3_of(256.0f);
    LtMatrix ma{CUDA_R_8F_E4M3, 512, 16, {}, device_of(a)}, mb{CUDA_R_8F_E4M3, 512, 16, {}, device_of(b)};
    LtMatrix d{CUDA_R_32F, 16, 16, {}, lt_device(nullptr, 1024)};
    LtCall call(ma, mb, d, true, false);
    CHECK(call.find() == kSuccess);
    CHECK(call.run() == kSuccess);
    // The first 128 elements lose all small products; the other three groups of 128 are exact.
    CHECK(lt_read(d)[0] == 256 + 3 * 128 * 0x1p-6f);
    CHECK(call.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}) == kSuccess);
    CHECK(call.run() == kSuccess);
    CHECK(lt_read(d)[0] == 256);  // everything small is lost
}
