// Products by oneDNN: the number of threads does not change their bits.
// build: per device
#include "llmc/linear/onednn_host.h"

#if !LLMC_CUDA
#include <omp.h>

#include "llmc/linear/matmul.h"
#include "test/linear/sums.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE_TEMPLATE("products by oneDNN have the same bits with any number of threads" *
                       doctest::test_suite(kNotUnderTsan),
                   Real, float, bf16) {
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
        matmul.reserve(N, C, OC);
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
#endif
