// Quantizing RMS norm against the plain kernels, which rmsnorm.cpp compares with FP64, and a cast of what they write.
// build: per device
#include "llmc/kernels/norm.h"

#include "llmc/check/reference_rms.h"
#include "test/kernels/quantized.h"
#include "test/kernels/shared_memory.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr float kEps = 1e-5f;

// Rows that fill a thread's vectors and not, of one warp and of two, three and five; the last block full or not; 48 KB
// of shared memory with the static arrays alone (1296, 2576, 2320).
std::vector<RowShape> forward_shapes() {
    return {{16, 16},   {48, 64},   {80, 144},  {32, 512},  {48, 768},  {16, 1600}, {32, 256},
            {16, 1024}, {16, 2048}, {16, 2064}, {16, 4112}, {16, 8208}, {16, 1296}, {16, 2576}};
}
std::vector<RowShape> backward_shapes() {
    return {{16, 16},   {48, 64},   {80, 144},  {64, 256},  {48, 272},
            {112, 768}, {16, 1600}, {48, 2064}, {16, 2320}, {32, 4096}};
}

// Inputs, and what the plain kernels make of them.
struct Case {
    int N, C;
    size_t n;
    DeviceArray<bf16> inp1, inp2, weight_values, dout, dresidual;
    const bf16* weight;
    DeviceArray<bf16> residual, normed;
    DeviceArray<float> rstd;

    Case(int N_, int C_, bool add, bool weighted = true)
        : N(N_),
          C(C_),
          n(static_cast<size_t>(N) * C),
          inp1(random_normal<bf16>(n, 1.0f, static_cast<uint32_t>(N * 31 + C), 0.5f)),
          inp2(random_normal<bf16>(n, 0.7f, static_cast<uint32_t>(N * 37 + C))),
          weight_values(random_normal<bf16>(static_cast<size_t>(C), 0.3f, static_cast<uint32_t>(C + 2), 1.0f)),
          dout(random_normal<bf16>(n, 1.0f, static_cast<uint32_t>(N * 43 + C), 0.2f)),
          dresidual(random_normal<bf16>(n, 1.0f, static_cast<uint32_t>(N * 47 + C), 0.3f)),
          weight(weighted ? weight_values.get() : nullptr),
          residual(n),
          normed(n),
          rstd(static_cast<size_t>(N)) {
        rmsnorm_forward<bf16>(normed, rstd, add ? residual.get() : nullptr, inp1, add ? inp2.get() : nullptr, weight, N,
                              C, kEps, test_stream());
    }
    void check_forward(bool add, float scale) {
        DeviceArray<float> r(static_cast<size_t>(N));
        const auto poison = DeviceArray<bf16>(n).download(), stored = residual.download();
        check_quantizer<e4m3>(
            to_floats(normed.download()), N, C, scale, Known::exactly,
            [&](const Quantized<e4m3>& to, QuantizePass pass) {
                DeviceArray<bf16> fresh(n);
                rmsnorm_forward_fp8(to, r, add ? fresh.get() : nullptr, inp1, add ? inp2.get() : nullptr, weight, N, C,
                                    kEps, pass, test_stream());
                CHECK(same_bits(r.download(), rstd.download()));
                if (add) CHECK(same_bits(fresh.download(), pass == QuantizePass::measure ? poison : stored));
            });
    }
};

}  // namespace

TEST_CASE("rmsnorm_forward_fp8 is rmsnorm_forward and quantize, with and without residual and weight") {
    for (const auto [N, C] : forward_shapes()) {
        forget_shared_memory();
        CAPTURE(N);
        CAPTURE(C);
        Case(N, C, false).check_forward(false, 64.0f);
        if (N * C > 40000) continue;
        Case(N, C, true).check_forward(true, 250.0f);  // saturates
        Case(N, C, false, false).check_forward(false, 0.01f);
    }
}

TEST_CASE("rmsnorm_forward_fp8 counts a row that is not finite") {
    Case c(48, 144, false);
    auto x = c.inp1.download();
    x[7 * 144 + 3] = to_bf16(std::numeric_limits<float>::infinity());
    c.inp1.upload(x);
    rmsnorm_forward<bf16>(c.normed, c.rstd, nullptr, c.inp1, nullptr, c.weight, 48, 144, kEps, test_stream());
    REQUIRE(QuantizedReference<e4m3>(to_floats(c.normed.download()), 1.0f).counted.nonfinite > 0);
    c.check_forward(false, 64.0f);
}

TEST_CASE_TEMPLATE("rmsnorm_backward_fp8 is rmsnorm_backward and quantize", F8, e4m3, e5m2) {
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 0.7f;  // saturates; a little underflows
    for (const auto [N, C] : backward_shapes()) {
        forget_shared_memory();
        for (const bool weighted : {true, false}) {
            CAPTURE(N);
            CAPTURE(C);
            CAPTURE(weighted);
            Case c(N, C, false, weighted);
            const size_t columns = static_cast<size_t>(C);
            DeviceArray<bf16> dinp(c.n), fused(c.n);
            DeviceArray<float> dweight(columns), plain_dweight(columns), plain_scratch(rmsnorm_backward_scratch(N, C)),
                scratch(rmsnorm_backward_fp8_scratch(N, C));
            const bool add = weighted;  // one of each
            rmsnorm_backward<bf16>(dinp, add ? c.dresidual.get() : nullptr, weighted ? plain_dweight.get() : nullptr,
                                   weighted ? plain_scratch.get() : nullptr, c.dout, c.inp1, c.weight, c.rstd, N, C,
                                   false, test_stream());
            const auto expected = dinp.download();
            const auto untouched = DeviceArray<F8>(c.n).download();
            const auto x = to_doubles(c.inp1.download());
            const auto exact = reference::rms_gradient(x, to_doubles(c.dout.download()),
                                                       reference::rms_rstd(x, N, C, static_cast<double>(kEps)), {}, C);
            for (const QuantizePass pass : {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure}) {
                CAPTURE(static_cast<int>(pass));
                const Fp8State before = used_state(scale);
                QuantizedArrays<F8> to(c.n, before);
                rmsnorm_backward_fp8<F8>(to.both(), fused, add ? c.dresidual.get() : nullptr,
                                         weighted ? dweight.get() : nullptr, weighted ? scratch.get() : nullptr, c.dout,
                                         c.inp1, c.weight, c.rstd, N, C, false, pass, test_stream());
                // The plain kernel's gradient, but for a product that a GPU fuses in one of the two; the rest is its
                // cast.
                const auto gradient = fused.download();
                CHECK(max_relative_error(gradient, to_doubles(expected), 0.5) < 2 * rounding_error<bf16>());
                const QuantizedReference<F8> reference(to_floats(gradient), scale);
                if (weighted)
                    CHECK(max_relative_error(dweight.download(), exact.dweight, 1.0 + N) <
                          reference::kLayernormSumError);
                CHECK(state_matches(to.state.download()[0], reference.after(before, pass), Known::exactly, 0));
                if (pass == QuantizePass::measure) {
                    CHECK(same_bits(to.row.download(), untouched));
                    CHECK(same_bits(to.transposed.download(), untouched));
                    continue;
                }
                CHECK(wrong_codes(to.row.download(), reference.row, Known::exactly) == 0);
                CHECK(not_transposed(to.row.download(), to.transposed.download(), N, C) == 0);
            }
        }
    }
}

TEST_CASE("rmsnorm_*_fp8 refuse what they cannot do") {
    DeviceArray<bf16> x(512);
    DeviceArray<float> f(512);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    const auto forward = [&](bf16* residual, const bf16* inp2, int N, int C) {
        return refusal([&] {
            rmsnorm_forward_fp8(to.both(), f, residual, x, inp2, x, N, C, kEps, QuantizePass::train, test_stream());
        });
    };
    CHECK(forward(nullptr, nullptr, 16, 16) == "");
    CHECK(forward(nullptr, nullptr, 24, 16).find("rmsnorm_forward_fp8: N=24") != std::string::npos);
    CHECK(forward(nullptr, nullptr, 16, 12304).find("C=12304") != std::string::npos);
    CHECK(forward(x, nullptr, 16, 16) != "");
    CHECK(forward(nullptr, x, 16, 16) != "");
    const auto backward = [&](float* dweight, int N, int C, QuantizePass pass) {
        return refusal([&] {
            rmsnorm_backward_fp8<e4m3>(to.both(), x, nullptr, dweight, f, x, x, x, f, N, C, false, pass, test_stream());
        });
    };
    CHECK(backward(f, 16, 16, QuantizePass::train) == "");
    CHECK(backward(f, 16, 4112, QuantizePass::train).find("rmsnorm_backward_fp8: C=4112") != std::string::npos);
    CHECK(backward(f, 16, 16, QuantizePass::write).find("runs once") != std::string::npos);
    CHECK(backward(nullptr, 16, 16, QuantizePass::train).find("go together") != std::string::npos);
}
