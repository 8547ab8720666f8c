// Quantizing layer norm against the plain kernels, which layernorm.cpp compares with FP64: the same bits in residual
// and statistics, and codes that are casts of the FP32 kernel's values.
// build: per device
#include "llmc/kernels/norm.h"

#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif
#include "test/kernels/quantized.h"
#include "test/kernels/shared_memory.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::vector<RowShape> layernorm_shapes() {
    // Rows that fill a thread's vectors and not, of one warp and of two, three and five; the last block full or not. At
    // the end widths whose tile needs 48 KB of shared memory with the static arrays alone: 1296 to 1536, 2576 to 3072.
    return {{16, 16},   {48, 64},   {80, 144},  {32, 512},  {48, 768},  {16, 1600}, {272, 144}, {32, 256}, {16, 1024},
            {16, 2048}, {16, 2064}, {16, 4112}, {16, 8208}, {16, 1296}, {16, 1536}, {16, 2576}, {16, 3072}};
}

// Inputs, and what the plain kernels make of them.
struct Case {
    int N, C;
    size_t n;
    DeviceArray<bf16> inp1, inp2, weight, shift;
    std::vector<bf16> residual;
    std::vector<float> mean, rstd, normed;

    Case(int N_, int C_, bool add, bool dirty = false)
        : N(N_),
          C(C_),
          n(static_cast<size_t>(N) * C),
          inp1(random_normal<bf16>(n, 1.0f, static_cast<uint32_t>(N * 31 + C), 0.5f)),
          inp2(random_normal<bf16>(n, 0.7f, static_cast<uint32_t>(N * 37 + C))),
          weight(random_normal<bf16>(static_cast<size_t>(C), 0.3f, static_cast<uint32_t>(C + 2), 1.0f)),
          shift(random_normal<bf16>(static_cast<size_t>(C), 0.3f, static_cast<uint32_t>(C + 3))) {
        if (dirty) {
            auto values = inp1.download();
            values[static_cast<size_t>(7) * C + 3] = to_bf16(std::numeric_limits<float>::infinity());
            inp1.upload(values);
        }
        DeviceArray<bf16> r(n), out(n);
        DeviceArray<float> m(static_cast<size_t>(N)), s(static_cast<size_t>(N)), wide_out(n);
        layernorm_forward<bf16>(out, m, s, add ? r.get() : nullptr, inp1.get(), add ? inp2.get() : nullptr,
                                weight.get(), shift.get(), N, C, test_stream());
        mean = m.download(), rstd = s.download();
        residual = add ? r.download() : inp1.download();
        DeviceArray<float> wide(to_floats(residual)), w(to_floats(weight.download())), b(to_floats(shift.download()));
        layernorm_forward<float>(wide_out, nullptr, nullptr, nullptr, wide.get(), nullptr, w.get(), b.get(), N, C,
                                 test_stream());
        normed = wide_out.download();
    }

    void check(bool add, float scale) {
        DeviceArray<bf16> r(n);
        DeviceArray<float> m(static_cast<size_t>(N)), s(static_cast<size_t>(N));
        const auto poison = r.download();
        check_quantizer<e4m3>(normed, N, C, scale, Known::nearly, [&](const Quantized<e4m3>& to, QuantizePass pass) {
            DeviceArray<bf16> fresh(n);
            layernorm_forward_fp8(to, m, s, add ? fresh.get() : nullptr, inp1.get(), add ? inp2.get() : nullptr,
                                  weight.get(), shift.get(), N, C, pass, test_stream());
            CHECK(same_bits(m.download(), mean));
            CHECK(same_bits(s.download(), rstd));
            if (add) CHECK(same_bits(fresh.download(), pass == QuantizePass::measure ? poison : residual));
        });
    }
};

}  // namespace

TEST_CASE("layernorm_forward_fp8, all passes, with and without residual") {
    for (const auto [N, C] : layernorm_shapes()) {
        forget_shared_memory();
        CAPTURE(N);
        CAPTURE(C);
        Case(N, C, false).check(false, 64.0f);
        if (N * C > 40000) continue;
        Case(N, C, true).check(true, 250.0f);  // saturates
    }
    for (const auto [N, C] : {RowShape{48, 768}, {16, 2064}}) Case(N, C, true).check(true, 0.01f);
}

TEST_CASE("layernorm_forward_fp8 in place: measure, then write") {
    for (const int C : {144, 1600, 2064}) {
        const int N = 48;
        for (const bool over_first : {true, false}) {
            Case c(N, C, true);
            QuantizedArrays<e4m3> to(c.n, used_state(64.0f));
            bf16* residual = over_first ? c.inp1.get() : c.inp2.get();
            const auto run = [&](QuantizePass pass) {
                layernorm_forward_fp8(to.both(), nullptr, nullptr, residual, c.inp1.get(), c.inp2.get(), c.weight.get(),
                                      c.shift.get(), N, C, pass, test_stream());
            };
            run(QuantizePass::measure);
            run(QuantizePass::measure);
            run(QuantizePass::write_counted);
            CHECK(same_bits((over_first ? c.inp1 : c.inp2).download(), c.residual));
            const QuantizedReference<e4m3> reference(c.normed, 64.0f);
            CHECK(wrong_codes(to.row.download(), reference.row, Known::nearly) == 0);
            Fp8State expected = reference.after(used_state(64.0f), QuantizePass::measure);
            expected = reference.after(expected, QuantizePass::write_counted);
            CHECK(state_matches(to.state.download()[0], expected, Known::nearly, reference.doubtful));
        }
    }
}

#if !LLMC_CUDA
// Cards with less shared memory a block have fewer rows in one from C=5760 (99 KB) or 9856 (163 KB) on.
TEST_CASE("layernorm_forward_fp8 gives the same bytes whatever a card has of shared memory") {
    size_t& limit = host::settings().shared_limit;
    const size_t usual = limit;
    for (const int C : {1536, 5760, 5776, 9872, 11648}) {
        CAPTURE(C);
        const int N = 32;
        const Case c(N, C, true);
        const auto run = [&](QuantizedArrays<e4m3>& to) {
            DeviceArray<bf16> residual(c.n);
            layernorm_forward_fp8(to.both(), nullptr, nullptr, residual, c.inp1.get(), c.inp2.get(), c.weight.get(),
                                  c.shift.get(), N, C, QuantizePass::train, test_stream());
            return residual.download();
        };
        limit = 227 * 1024;
        QuantizedArrays<e4m3> expected(c.n, used_state(64.0f));
        const auto residual = run(expected);
        CHECK(not_transposed(expected.row.download(), expected.transposed.download(), N, C) == 0);
        for (const size_t kilobytes : {163, 99}) {
            CAPTURE(kilobytes);
            limit = kilobytes * 1024;
            QuantizedArrays<e4m3> to(c.n, used_state(64.0f));
            CHECK(same_bits(run(to), residual));
            CHECK(same_bits(to.row.download(), expected.row.download()));
            CHECK(same_bits(to.transposed.download(), expected.transposed.download()));
            CHECK(same_bits(to.state.download(), expected.state.download()));
        }
        limit = usual;
    }
    limit = 99 * 1024;
    DeviceArray<bf16> x(size_t{16} * 11664);
    QuantizedArrays<e4m3> to(x.size(), used_state(1.0f));
    const std::string message = refusal([&] {
        layernorm_forward_fp8(to.both(), nullptr, nullptr, nullptr, x.get(), nullptr, x.get(), x.get(), 16, 11664,
                              QuantizePass::train, test_stream());
    });
    limit = usual;
    CAPTURE(message);
    CHECK(message.find("C=11664 need ") != std::string::npos);
    CHECK(message.find("a block 101376") != std::string::npos);
}
#endif

TEST_CASE("layernorm_forward_fp8 counts a row that is not finite") {
    for (const int C : {144, 2064}) {
        Case c(48, C, true, true);
        REQUIRE(QuantizedReference<e4m3>(c.normed, 1.0f).counted.nonfinite == static_cast<uint64_t>(C));
        DeviceArray<bf16> residual(c.n);
        check_quantizer<e4m3>(c.normed, 48, C, 64.0f, Known::nearly, [&](const Quantized<e4m3>& to, QuantizePass pass) {
            layernorm_forward_fp8(to, nullptr, nullptr, residual, c.inp1.get(), c.inp2.get(), c.weight.get(),
                                  c.shift.get(), 48, C, pass, test_stream());
        });
    }
}

TEST_CASE("layernorm_forward_fp8 refuses what it cannot do") {
    DeviceArray<bf16> x(512);
    DeviceArray<float> m(16);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    const auto run = [&](float* mean, bf16* residual, const bf16* inp2, int N, int C) {
        return refusal([&] {
            layernorm_forward_fp8(to.both(), mean, m, residual, x.get(), inp2, x.get(), x.get(), N, C,
                                  QuantizePass::train, test_stream());
        });
    };
    CHECK(run(m, nullptr, nullptr, 16, 16) == "");
    CHECK(run(m, nullptr, nullptr, 24, 16).find("N=24") != std::string::npos);
    CHECK(run(m, nullptr, nullptr, 16, 24).find("C=24") != std::string::npos);
    CHECK(run(m, nullptr, nullptr, 16, 12304).find("C=12304") != std::string::npos);
    CHECK(run(m, x, nullptr, 16, 16) != "");
    CHECK(run(m, nullptr, x, 16, 16) != "");
    CHECK(run(nullptr, nullptr, nullptr, 16, 16) != "");
}
