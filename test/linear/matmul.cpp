// Tests of the matrix products against FP64 sums: odd shapes, both operand types, bias, accumulation, counts, refusals.
#include "llmc/linear/matmul.h"

#include "test/linear/sums.h"

using namespace llmc;
using namespace llmc::test;

namespace {

template <class Real>
void check_products(int N, int C, int OC) {
    CAPTURE(N);
    CAPTURE(C);
    CAPTURE(OC);
    const size_t inp_size = static_cast<size_t>(N) * C, weight_size = static_cast<size_t>(OC) * C;
    const size_t out_size = static_cast<size_t>(N) * OC;
    const std::vector<Real> inp = random_normal<Real>(inp_size, 1.0f, 1),
                            weight = random_normal<Real>(weight_size, 0.1f, 2);
    const std::vector<Real> bias = random_normal<Real>(OC, 2.0f, 3), dout = random_normal<Real>(out_size, 1.0f, 4);
    const std::vector<double> x = to_doubles(inp), w = to_doubles(weight), d = to_doubles(dout);

    Matmul matmul(false);
    matmul.reserve({N, C, OC});
    DeviceArray<Real> d_inp(inp), d_weight(weight), d_bias(bias), d_dout(dout);
    DeviceArray<Real> out(out_size), out_plain(out_size), out_added(out_size), dinp(inp_size);
    DeviceArray<float> dweight(weight_size);
    matmul.forward<Real>(out, d_inp, d_weight, d_bias, N, C, OC, test_stream());
    matmul.forward<Real>(out_plain, d_inp, d_weight, nullptr, N, C, OC, test_stream());
    matmul.forward<Real>(out_added, d_inp, d_weight, d_bias, N, C, OC, test_stream(), d_dout);
    matmul.dgrad<Real>(dinp, d_dout, d_weight, N, C, OC, test_stream());
    matmul.wgrad<Real>(dweight, d_dout, d_inp, N, C, OC, false, test_stream());

    const double u = fp32_unit();
    const ExactSums forward(x, w, C), dgrad(d, transposed(w, OC, C), OC),
        wgrad(transposed(d, N, OC), transposed(x, N, C), N);
    CHECK(part_of_allowed(out.download(), forward.plus(to_doubles(bias)), u) <= 1);
    CHECK(part_of_allowed(out_plain.download(), forward, u) <= 1);
    CHECK(part_of_allowed(out_added.download(), forward.plus(to_doubles(bias)).plus(d), u) <= most_of_added());
    CHECK(part_of_allowed(dinp.download(), dgrad, u) <= 1);
    CHECK(part_of_allowed(dweight.download(), wgrad, u) <= 1);

    matmul.wgrad<Real>(dweight, d_dout, d_inp, N, C, OC, true, test_stream());
    CHECK(part_of_allowed(dweight.download(), wgrad.twice(), u) <= 1);
}

}  // namespace

TEST_CASE_TEMPLATE("a product is scaled and added to another matrix, and rounded once", Real, float, bf16) {
    const int N = 40, C = 24, OC = 56;
    const size_t out_size = static_cast<size_t>(N) * OC;
    const std::vector<Real> inp = random_normal<Real>(static_cast<size_t>(N) * C, 1.0f, 1),
                            weight = random_normal<Real>(static_cast<size_t>(OC) * C, 1.0f, 2),
                            addend = random_normal<Real>(out_size, 100.0f, 3);
    Matmul matmul(false);
    matmul.reserve({N, C, OC});
    DeviceArray<Real> d_inp(inp), d_weight(weight), d_addend(addend), out(out_size);
    const Product product{Product::forward, operand_type<Real>, N, C, OC, false, false};
    const ProductTensors tensors{.result = out.get(),
                                 .first = d_inp.get(),
                                 .second = d_weight.get(),
                                 .addend = d_addend.get(),
                                 .factor = 2,
                                 .addend_factor = -3};
    matmul.multiply(product, tensors, test_stream());
    // Twice the product is exact, and so is three times a BF16 number in FP32.
    std::vector<double> doubled = to_doubles(weight), tripled = to_doubles(addend);
    for (double& x : doubled) x *= 2;
    for (double& x : tripled) x *= -3;
    const ExactSums sums(to_doubles(inp), doubled, C);
    CHECK(part_of_allowed(out.download(), sums.plus(tripled), 2 * fp32_unit()) <= 1);
    CHECK(part_of_allowed(out.download(), sums, 2 * fp32_unit()) > 1);
    CHECK(same_bits(d_addend.download(), addend));

    const auto refused = [&](const Product& p, const ProductTensors& t) {
        CHECK_THROWS_AS(matmul.multiply(p, t, test_stream()), Error);
    };
    ProductTensors wrong = tensors;
    wrong.addend = out.get();
    refused(product, wrong);
    wrong.addend = nullptr;
    refused(product, wrong);
    refused({Product::wgrad, operand_type<Real>, N, C, OC, false, true}, tensors);
}

TEST_CASE("FP32 products of any shape equal FP64") {
    for (const int N : {1, 7, 100}) {
        check_products<float>(N, 48, 64);
        check_products<float>(N, 33, 5);
        check_products<float>(N, 1, 17);
        check_products<float>(N, 64, 1);
    }
    check_products<float>(257, 96, 200);
    check_products<float>(16, 16, 4100);  // oneDNN's sums of this length are added up in pieces
    check_products<float>(4100, 16, 16);
}

TEST_CASE("BF16 products equal FP64 rounded once, and wgrad keeps FP32") {
    for (const int N : {1, 7, 100}) {
        check_products<bf16>(N, 48, 64);
        check_products<bf16>(N, 8, 136);
        check_products<bf16>(N, 200, 8);
    }
    check_products<bf16>(257, 96, 200);  // large enough for several threads
}

TEST_CASE("a product repeated has the same bits, in another buffer too") {
    const int N = 300, C = 128, OC = 256;
    const std::vector<bf16> inp = random_normal<bf16>(N * C, 1.0f, 1), weight = random_normal<bf16>(OC * C, 1.0f, 2);
    DeviceArray<bf16> d_inp(inp), shifted_inp(N * C + 8), d_weight(weight), out(N * OC), again(N * OC + 8);
    Matmul matmul(false);
    matmul.reserve({N, C, OC});
    copy_on_device(shifted_inp + 8, d_inp, N * C * sizeof(bf16), test_stream());
    matmul.forward<bf16>(out, d_inp, d_weight, nullptr, N, C, OC, test_stream());
    matmul.forward<bf16>(again + 8, shifted_inp + 8, d_weight, nullptr, N, C, OC, test_stream());
    std::vector<bf16> repeated = again.download();
    repeated.erase(repeated.begin(), repeated.begin() + 8);
    CHECK(same_bits(out.download(), repeated));
}

TEST_CASE("FP32 products keep what TF32 would lose") {
    // 1 + 2^-12 rounds to 1 in TF32, which keeps 10 mantissa bits.
    const int N = 64, C = 64, OC = 64;
    const std::vector<float> inp(N * C, 1.0f + 1.0f / 4096), weight(OC * C, 1.0f);
    DeviceArray<float> d_inp(inp), d_weight(weight), out(N * OC);
    Matmul matmul(false);
    matmul.forward<float>(out, d_inp, d_weight, nullptr, N, C, OC, test_stream());
    for (const float x : out.download()) REQUIRE(x == 64.0f + 64.0f / 4096);
}

TEST_CASE("products are counted by operand type") {
    const int n = 16;
    DeviceArray<float> f(std::vector<float>(n * n, 1.0f)), f_out(n * n);
    DeviceArray<bf16> b(std::vector<bf16>(n * n, to_bf16(1.0f))), b_out(n * n);
    Matmul matmul(false);
    matmul.reserve({n, n, n});
    matmul.forward<float>(f_out, f, f, nullptr, n, n, n, test_stream());
    matmul.forward<bf16>(b_out, b, b, nullptr, n, n, n, test_stream());
    matmul.dgrad<bf16>(b_out, b, b, n, n, n, test_stream());
    matmul.wgrad<bf16>(f_out, b, b, n, n, n, false, test_stream());
    CHECK(matmul.counts().fp32 == 1);
    CHECK(matmul.counts().bf16 == 3);
    CHECK(matmul.counts().fp8 == 0);
    matmul.reset_counts();
    CHECK(matmul.counts().bf16 == 0);
}

TEST_CASE("a product with a shape or a pointer that it cannot have is refused, and not counted") {
    const int n = 16;
    DeviceArray<bf16> x(2 * n * n), y(2 * n * n);
    Matmul matmul(false);
    if (device_info().is_host) {
        CHECK_THROWS_WITH(matmul.forward<bf16>(y, x, x, nullptr, n, n, 2 * n, test_stream()),
                          "matmul forward bf16 N=16 C=16 OC=32: call Matmul::reserve() for this layer");
        CHECK(matmul.reserved_bytes() == 0);
    }
    matmul.reserve({n, n, n});
    matmul.allocate();
    CHECK(matmul.reserved_bytes() >= 2 * n * n * sizeof(bf16));
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x + 1, x, nullptr, n, n, n, test_stream()), Error);
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x, nullptr, nullptr, n, n, n, test_stream()), Error);
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x, x, nullptr, n, 0, n, test_stream()), Error);
    CHECK(matmul.counts().bf16 == 0);
    matmul.forward<bf16>(y, x, x, nullptr, n, n, n, test_stream());
    const stream_t other = create_stream();
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x, x, nullptr, n, n, n, other), Error);
    CHECK(matmul.counts().bf16 == 1);
    destroy_stream(other);
}
