// Attention's Hopper variant: against FP64 within the portable kernel's own bounds, FP8 outputs against quantize() of
// the BF16 ones byte by byte, and the same bits on every run. Skipped where the device is no Hopper card.
#include <array>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/variants.h"
#include "test/kernels/attention_run.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using Shape = reference::AttentionShape;
using test::attention::bytes_of;
using test::attention::Run;

bool is_hopper() {
    test_stream();
    const int card = device_info().compute_capability;
    return kernel_variant(KernelVariant::hopper_attention).runs_on(card) && card != kHostDevice;
}

// While this lives, the tests' stream runs the variant.
struct OnHopper {
    OnHopper() {
        KernelSet kernels;
        kernels.add(KernelVariant::hopper_attention);
        choose_kernels(test_stream(), kernels);
    }
    ~OnHopper() { choose_kernels(test_stream(), {}); }
};

Shape with_documents(Shape s, int length) {
    for (int t = 0; t < s.tokens(); t++) s.documents.push_back(t % s.T / length * length);
    return s;
}

// One token; less than a tile of keys; several blocks of queries and a part; shared keys; windows narrower than a tile,
// and wide ones that leave out whole tiles; documents.
std::vector<Shape> shapes() {
    std::vector<Shape> shapes;
    for (const int HD : {64, 128}) {
        for (const auto& [B, T, NH, NKV] :
             {std::array{2, 1, 2, 2}, std::array{1, 40, 3, 3}, std::array{1, 129, 2, 1}, std::array{2, 392, 4, 2}})
            shapes.push_back({B, T, NH, HD, NKV});
        shapes.push_back({1, 200, 2, HD, 1, 0, 20});
        shapes.push_back({1, 456, 1, HD, 1, 0, 150});
        shapes.push_back(with_documents({2, 136, 3, HD, 1, 0, 50}, 37));
        shapes.push_back(with_documents({1, 456, 1, HD}, 152));
    }
    return shapes;
}

}  // namespace

TEST_CASE("Hopper's attention is within the bounds of FP64") {
    if (!is_hopper()) return;
    for (const Shape& s : shapes()) {
        INFO(s.text());
        const std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.5f, 5);
        const std::vector<bf16> dout = random_normal<bf16>(s.elements(), 1.0f, 6);
        const reference::Attention expected =
            reference::attention(s, to_doubles(qkv), to_doubles(dout), reference::attention_rounding(true),
                                 reference::attention_slack(true));
        Run<bf16> portable(s, qkv, dout), run(s, qkv, dout);
        portable.forward();
        const OnHopper chosen;
        run.forward();
        const double floor = reference::kAttentionFloor;
        CHECK(test::attention::worst_against_bound(to_doubles(run.out.download()), expected.out, expected.out_bound,
                                                   floor) <= 1);
        CHECK(test::attention::worst_against_bound(run.output(), expected.out, expected.out_sum_bound, floor) <= 1);
        CHECK(max_relative_error(run.lse.download(), expected.lse, 1.0) < reference::kAttentionLseError);
        CHECK(test::attention::norm_error(run.output(), expected.out) <
              reference::attention_norms(reference::attention_rounding(true)).out_sum);
        if (s.T > 256) CHECK(bytes_of(run.out_low) != bytes_of(portable.out_low));  // other sums: the variant ran
        const std::vector<uint8_t> out = bytes_of(run.out), low = bytes_of(run.out_low), lse = bytes_of(run.lse);
        run.forward();
        CHECK(bytes_of(run.out) == out);
        CHECK(bytes_of(run.out_low) == low);
        CHECK(bytes_of(run.lse) == lse);
    }
}

TEST_CASE("Hopper's attention quantizes what it would have written in BF16") {
    if (!is_hopper()) return;
    const OnHopper chosen;
    for (const Shape& s : shapes()) {
        if (s.T % kQuantizedAttentionTokens != 0 || s.tokens() % 16 != 0) continue;
        INFO(s.text());
        const std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.0f, 7);
        Run<bf16> plain(s, qkv, qkv.size() == s.elements() ? qkv : std::vector<bf16>(s.elements()));
        plain.forward();
        std::vector<float> x;
        for (const double value : plain.output()) x.push_back(static_cast<float>(value));
        const QuantizedReference<e4m3> expected(x, 200.0f);
        for (const QuantizePass pass : {QuantizePass::train_counted, QuantizePass::replay}) {
            const Fp8State before = used_state(200.0f);
            QuantizedArrays<e4m3> to(x.size(), before), alone(x.size(), before);
            Run<bf16> run(s, qkv, std::vector<bf16>(s.elements()));
            attention_forward_fp8(to.both(), run.out, run.out_low, run.lse, run.qkv, s.B, s.T, s.heads(), pass,
                                  test_stream(), run.documents_or_none());
            CHECK(bytes_of(run.out) == bytes_of(plain.out));
            CHECK(bytes_of(run.lse) == bytes_of(plain.lse));
            CHECK(wrong_codes(to.row.download(), expected.row, Known::exactly) == 0);
            CHECK(not_transposed(to.row.download(), to.transposed.download(), s.tokens(), s.width()) == 0);
            CHECK(state_matches(to.state.download()[0], expected.after(before, pass), Known::exactly, 0));
            attention_forward_fp8({nullptr, alone.transposed.get(), alone.state.get()}, nullptr, nullptr, run.lse,
                                  run.qkv, s.B, s.T, s.heads(), pass, test_stream(), run.documents_or_none());
            CHECK(same_bits(alone.transposed.download(), to.transposed.download()));
        }
    }
}
