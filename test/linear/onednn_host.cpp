// Products by oneDNN: the number of threads does not change their bits, and none runs oneDNN's slow reference code.
// build: per device
#include "llmc/linear/products_host.h"

#if !LLMC_CUDA
#include <omp.h>

#include <cmath>

#include "llmc/linear/matmul.h"
#include "test/linear/sums.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE_TEMPLATE("products by oneDNN have the same bits with any number of threads", Real, float, bf16) {
    if (!(sizeof(Real) == 4 ? host::OnednnProducts::has_fp32() : host::OnednnProducts::has_bf16())) return;
    // Sums of N, C and OC terms. oneDNN itself splits those of N terms between threads.
    const int N = 4160, C = 72, OC = 2112, threads = omp_get_max_threads();
    const size_t inp_size = static_cast<size_t>(N) * C, weight_size = static_cast<size_t>(OC) * C,
                 out_size = static_cast<size_t>(N) * OC;
    DeviceArray<Real> inp(random_normal<Real>(inp_size, 1.0f, 1)), weight(random_normal<Real>(weight_size, 1.0f, 2)),
        dout(random_normal<Real>(out_size, 1.0f, 3)), bias(random_normal<Real>(OC, 1.0f, 4));
    std::vector<Real> out, dinp;
    std::vector<float> dweight;
    for (const int t : {1, 2, 3, 4, 16}) {
        CAPTURE(t);
        omp_set_num_threads(t);
        Matmul matmul(false);
        matmul.reserve({N, C, OC});
        DeviceArray<Real> d_out(out_size), d_dinp(inp_size);
        DeviceArray<float> d_dweight(weight_size);
        matmul.forward<Real>(d_out, inp, weight, bias, N, C, OC, test_stream());
        matmul.dgrad<Real>(d_dinp, dout, weight, N, C, OC, test_stream());
        matmul.wgrad<Real>(d_dweight, dout, inp, N, C, OC, false, test_stream());
        if (t == 1) {
            out = d_out.download();
            dinp = d_dinp.download();
            dweight = d_dweight.download();
        }
        CHECK(same_bits(d_out.download(), out));
        CHECK(same_bits(d_dinp.download(), dinp));
        CHECK(same_bits(d_dweight.download(), dweight));
    }
    omp_set_num_threads(threads);
}

TEST_CASE("products by oneDNN never run its reference code") {
    if (!host::OnednnProducts::has_fp32()) return;
    // All forms of a layer's products, with sums of one piece and of three. Only forward has a bias.
    constexpr std::pair<bool, bool> kForms[] = {{false, false}, {false, true}, {true, false}};
    for (const int inner : {1024, 5000})
        for (const bool fp32 : {false, true})
            for (const bool fp32_result : {false, true})
                for (const bool scaled : {false, true})
                    for (const float kept : {0.0f, 1.0f})
                        for (const auto& [transposed, bias] : kForms) {
                            if ((fp32 && !fp32_result) || (!fp32 && !host::OnednnProducts::has_bf16())) continue;
                            const host::OnednnProduct p{768,  256,         inner,  transposed, !transposed,
                                                        fp32, fp32_result, scaled, bias,       kept};
                            CAPTURE(inner);
                            CAPTURE(fp32);
                            CAPTURE(fp32_result);
                            CAPTURE(scaled);
                            CAPTURE(kept);
                            CAPTURE(bias);
                            CHECK(host::OnednnProducts::implementation(p).find("ref") == std::string::npos);
                        }
}

TEST_CASE("products by oneDNN scale long sums, and add them to a result") {
    if (!host::OnednnProducts::has_bf16()) return;
    const int rows = 280, columns = 4100, inner = 2100;  // sums of 240 rows fit at a time
    const std::vector<bf16> first = random_normal<bf16>(size_t{rows} * inner, 1.0f, 1);
    const std::vector<bf16> second = random_normal<bf16>(size_t{inner} * columns, 1.0f, 2);
    const std::vector<bf16> bias = random_normal<bf16>(columns, 1.0f, 3);
    const std::vector<float> before = random_normal<float>(size_t{rows} * columns, 1.0f, 4);
    for (const bool transposed : {false, true})
        for (const float kept : {0.0f, 1.0f}) {
            std::vector<float> result = before;
            host::OnednnProducts products;
            products.multiply({rows, columns, inner, transposed, false, false, true, true, true, kept}, result.data(),
                              first.data(), second.data(), bias.data(), 0.25f);
            for (int r = 0; r < rows; r += 3)
                for (int c = 0; c < columns; c += 97) {
                    double sum = 0, size = 0;
                    for (int i = 0; i < inner; i++) {
                        const float x = to_float(first[transposed ? i * rows + r : r * inner + i]);
                        const double term = static_cast<double>(x) * to_float(second[i * columns + c]);
                        sum += term;
                        size += std::abs(term);
                    }
                    const int at = r * columns + c;
                    CHECK(std::abs(result[at] - (0.25 * sum + to_float(bias[c]) + kept * before[at])) < 1e-6 * size);
                }
        }
}
#endif
