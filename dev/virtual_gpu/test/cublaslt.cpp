// cuBLASLt: its rules by compute capability and version, each kept once and broken once, and products against sums.
#include "dev/virtual_gpu/cublaslt/rules.h"

#include <cublasLt.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/cublaslt/refusals.h"
#include "dev/virtual_gpu/test/child.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

constexpr int kNow = 130000;
constexpr int kMx = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, kOuter = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
              kVectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, kTiles = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

// A 64 x 32 product over 128 in the TN layout, as FP8 requires.
Product product_of(cudaDataType_t a, cudaDataType_t b, cudaDataType_t d) {
    Product p;
    p.operation.transa = CUBLAS_OP_T;
    p.a = {a, 128, 64, 128};
    p.b = {b, 128, 32, 128};
    p.c = p.d = {d, 64, 32, 64};
    return p;
}
Product fp8_product() { return product_of(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF); }
Product scaled_product(int a_mode, int b_mode) {
    static const float scale = 1;
    Product p = fp8_product();
    p.operation.a_mode = a_mode;
    p.operation.b_mode = b_mode;
    p.operation.a_scale = p.operation.b_scale = &scale;
    return p;
}

std::string why(const Product& p, int capability = 90, int version = kNow, uint32_t alignment = 16) {
    const uint32_t alignments[] = {alignment, alignment, alignment, alignment};
    CHECK(is_product(p));
    return why_not_supported(p, alignments, capability, version);
}
std::string why_changed(Product p, const std::function<void(Product&)>& change, int capability = 90) {
    CHECK(why(p, capability).empty());
    change(p);
    return why(p, capability);
}

}  // namespace

TEST_CASE("virtual_gpu cublaslt: matrices go together") {
    const auto is_after = [](const std::function<void(Product&)>& change) {
        Product p = fp8_product();
        change(p);
        return is_product(p);
    };
    CHECK(is_after([](Product&) {}));
    CHECK_FALSE(is_after([](Product& p) { p.a.rows = 112; }));
    CHECK_FALSE(is_after([](Product& p) { p.a.ld = 127; }));
    CHECK_FALSE(is_after([](Product& p) { p.d.columns = 16; }));
    CHECK_FALSE(is_after([](Product& p) { p.c.rows = 32; }));
    CHECK_FALSE(is_after([](Product& p) { p.operation.transb = CUBLAS_OP_T; }));
    CHECK_FALSE(is_after([](Product& p) { p.operation.transa = CUBLAS_OP_C; }));
}

TEST_CASE("virtual_gpu cublaslt: types of products that are not FP8") {
    const Product bf16 = product_of(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF);
    const Product fp32 = product_of(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F);
    for (const int capability : {80, 89, 90, 100, 120}) {
        CHECK(why(bf16, capability).empty());
        CHECK(why(fp32, capability).empty());
        CHECK(why(product_of(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F), capability).empty());
    }
    CHECK(why(bf16, 100, 120700) == "Blackwell before 12.8");
    CHECK(why(product_of(CUDA_R_32F, CUDA_R_32F, CUDA_R_16BF)) == "a type of D that does not go with A's");
    CHECK(why(product_of(CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F)) == "A and B of different types");
    CHECK(why(product_of(CUDA_R_16F, CUDA_R_16F, CUDA_R_16F)).find("FP32, BF16 and FP8") != std::string::npos);

    const auto tf32 = [](Product& p) { p.operation.compute = CUBLAS_COMPUTE_32F_FAST_TF32; };
    CHECK(why_changed(fp32, tf32).empty());
    CHECK(why_changed(bf16, tf32) == "a compute type that does not go with A's type");
    CHECK(why_changed(bf16, [](Product& p) { p.operation.scale_type = CUDA_R_16BF; }) ==
          "a scale type other than FP32");
    CHECK(why_changed(bf16, [](Product& p) { p.c.type = CUDA_R_32F; }) == "C and D of different types");
    CHECK(why_changed(bf16, [](Product& p) { p.operation.a_scale = &p; }) == "scales of a product that is not FP8");
    CHECK(why_changed(bf16, [](Product& p) { p.operation.b_mode = kMx; }) ==
          "scale modes of a product that is not FP8");
    CHECK(why_changed(bf16, [](Product& p) { p.operation.fast_accumulation = 1; }) ==
          "fast accumulation of a product that is not FP8");
    CHECK(why_changed(bf16, [](Product& p) { p.operation.epilogue = CUBLASLT_EPILOGUE_GELU; }) ==
          "an epilogue other than the bias");
    const auto bias = [](int type) {
        return [type](Product& p) {
            p.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
            p.operation.bias_type = type;
        };
    };
    CHECK(why_changed(bf16, bias(-1)).empty());
    CHECK(why_changed(bf16, bias(CUDA_R_16BF)).empty());
    CHECK(why_changed(bf16, bias(CUDA_R_32F)) == "a bias whose type is not D's");
}

TEST_CASE("virtual_gpu cublaslt: FP8 from 8.9 on and only TN except on 10.x") {
    CHECK(why(fp8_product(), 80) == "FP8 before compute capability 8.9");
    CHECK(why(fp8_product(), 89, 120000) == "FP8 in this version");
    CHECK(why(fp8_product(), 90, 120000).empty());
    const auto turn = [](Product& p) {
        p.operation.transa = CUBLAS_OP_N;
        p.a = {CUDA_R_8F_E4M3, 64, 128, 64};
    };
    for (const int capability : {89, 90, 120})
        CHECK(why_changed(fp8_product(), turn, capability) ==
              "FP8 with another layout than TN on this compute capability");
    CHECK(why_changed(fp8_product(), turn, 100).empty());
}

TEST_CASE("virtual_gpu cublaslt: types of FP8 products") {
    const auto e4m3 = CUDA_R_8F_E4M3, e5m2 = CUDA_R_8F_E5M2;
    CHECK(why(product_of(e5m2, e4m3, CUDA_R_32F)).empty());
    CHECK(why(product_of(e4m3, e5m2, CUDA_R_16BF)).empty());
    CHECK(why(product_of(e5m2, e5m2, CUDA_R_16BF)) == "E5M2 times E5M2");
    CHECK(why(product_of(e4m3, CUDA_R_16BF, CUDA_R_16BF)) == "FP8 with another type");
    const auto result = [&](cudaDataType_t b, cudaDataType_t c, cudaDataType_t d) {
        Product p = product_of(e4m3, b, d);
        p.c.type = c;
        return why(p);
    };
    CHECK(result(e4m3, CUDA_R_16BF, e4m3).empty());
    CHECK(result(e4m3, CUDA_R_16BF, e5m2) == "E4M3 times E4M3 into E5M2");
    CHECK(result(e5m2, CUDA_R_16BF, e5m2).empty());
    CHECK(result(e4m3, CUDA_R_32F, e4m3) == "a C of an FP8 result that is not BF16");
    CHECK(result(e4m3, CUDA_R_16BF, CUDA_R_32F) == "C and D of different types");
    CHECK(why_changed(fp8_product(), [](Product& p) { p.operation.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }) ==
          "a compute type of FP8 products other than FP32");
    CHECK(why_changed(fp8_product(), [](Product& p) { p.operation.d_scale = &p; }) == "a scale of D, which is not FP8");
    const auto bias = [](int type) {
        return [type](Product& p) {
            p.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
            p.operation.bias_type = type;
        };
    };
    const Product into_fp32 = product_of(e4m3, e4m3, CUDA_R_32F);
    CHECK(why_changed(fp8_product(), bias(-1)).empty());
    CHECK(why_changed(into_fp32, bias(CUDA_R_16BF)).empty());
    CHECK(why_changed(into_fp32, bias(-1)) == "a bias of an FP8 product that is not BF16");
    CHECK(why_changed(into_fp32, bias(CUDA_R_32F)) == "a bias of an FP8 product that is not BF16");
}

TEST_CASE("virtual_gpu cublaslt: shapes of FP8 products") {
    const std::string sizes = "FP8 dimensions that are no multiples of 16";
    const auto m = [](Product& p) { p.a.columns = p.c.rows = p.d.rows = 56; };
    const auto n = [](Product& p) { p.b.columns = p.c.columns = p.d.columns = 24; };
    const auto k = [](Product& p) { p.a.rows = p.b.rows = 120; };
    for (const std::function<void(Product&)>& change : {std::function<void(Product&)>(m), {n}, {k}})
        CHECK(why_changed(fp8_product(), change).substr(0, sizes.size()) == sizes);
    const std::string lines = "a leading dimension of FP8 products that is no multiple of 16 bytes";
    CHECK(why_changed(fp8_product(), [](Product& p) { p.a.ld = 136; }) == lines);
    CHECK(why_changed(fp8_product(), [](Product& p) { p.d.ld = 68; }) == lines);
    CHECK(why_changed(fp8_product(), [](Product& p) { p.c.ld = p.d.ld = 72; }).empty());
    CHECK(why(fp8_product(), 90, kNow, 8) == "matrices of FP8 products that are not aligned to 16 bytes");
    CHECK(why(product_of(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF), 90, kNow, 8).empty());
}

TEST_CASE("virtual_gpu cublaslt: scale modes by capability and version") {
    for (const auto& [a, b] :
         {std::pair{kVectors, kVectors}, {kVectors, kTiles}, {kTiles, kVectors}, {kOuter, kOuter}}) {
        CHECK(why(scaled_product(a, b), 90).empty());
        for (const int capability : {89, 100, 120})
            CHECK(why(scaled_product(a, b), capability).find("on another compute capability than 9.0") !=
                  std::string::npos);
        CHECK(why(scaled_product(a, b), 90, 120800).find("before 12.9") != std::string::npos);
    }
    CHECK(why(scaled_product(kTiles, kTiles)) == "scales of 128 x 128 elements for both operands");
    CHECK(why(scaled_product(kOuter, kVectors)) == "scale modes 3 and 4 together");
    CHECK(why(scaled_product(kMx, 0), 100) == "scale modes 2 and 0 together");
    for (const int capability : {100, 120}) CHECK(why(scaled_product(kMx, kMx), capability).empty());
    CHECK(why(scaled_product(kMx, kMx), 90) == "scales of 32 elements before compute capability 10.0");

    const auto without = [](Product& p) { p.operation.a_scale = nullptr; };
    CHECK(why_changed(scaled_product(kVectors, kVectors), without) == "scale modes without scales");
    CHECK(why_changed(scaled_product(0, 0), without).empty());
    const auto fast = [](Product& p) { p.operation.fast_accumulation = 1; };
    CHECK(why_changed(scaled_product(kVectors, kVectors), fast) == "fast accumulation with scales of 128 elements");
    CHECK(why_changed(scaled_product(0, 0), fast).empty());
    const auto into_fp8 = [](Product& p) { p.d.type = CUDA_R_8F_E4M3; };
    CHECK(why_changed(scaled_product(kVectors, kVectors), into_fp8) ==
          "an FP8 result of a product with scales other than the tensor's");

    CHECK(scale_alignment(0, 120800) == 4);
    CHECK(scale_alignment(0, 130100) == 16);
    CHECK(scale_alignment(0, 130200) == 4);
    CHECK(scale_alignment(kMx, 130200) == 16);
}
