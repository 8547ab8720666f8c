// Attention's kernels for Hopper meet attention's specifications. Skipped where the device is no Hopper card.
#include "llmc/kernels/hopper/attention.h"

#include "test/kernels/attention_run.h"
#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("Hopper's attention, plain and quantizing, meets attention's specifications") {
    test_stream();
    if (is_hopper()) check_specifications(check::add_hopper_attention_tests);
}

// delta is computed by the kernel that owns queries, from tiles in shared memory at head dimension 64 and from global
// memory at 128. T = 392 leaves part of the last tile without queries, and a block takes several tiles.
TEST_CASE("Hopper's backward of attention computes delta with the portable kernel's bits") {
    test_stream();
    if (!is_hopper()) return;
    for (const int HD : {64, 128}) {
        for (const int T : {392, 40}) {
            CAPTURE(HD);
            CAPTURE(T);
            const reference::AttentionShape s{2, T, 4, HD, 2};
            test::attention::Run<bf16> run(s);  // on the portable kernels
            const std::vector<float> portable = run.delta.download();
            run.delta.upload(std::vector<float>(portable.size()));
            run.shape.kernels = Kernels::automatic;
            run.backward();
            CHECK(same_bits(run.delta.download(), portable));
        }
    }
}

// The backward pass need not round differently: it adds up in the portable kernels' order, and on the virtual GPU it
// has their bits. That it runs at all is seen in test_check_card.py, where it is made wrong.
TEST_CASE("Hopper's attention is another kernel, whose sums round differently, at the head dimensions that it has") {
    test_stream();
    if (!is_hopper()) return;
    for (const int HD : {64, 96, 128}) {
        CAPTURE(HD);
        const reference::AttentionShape s{2, 392, 4, HD, 2};
        const std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.5f, 5), dout(s.elements());
        test::attention::Run<bf16> portable(s, qkv, dout), run(s, qkv, dout);
        run.shape.kernels = Kernels::automatic;
        portable.forward();
        run.forward();
        CHECK(same_bits(run.out_low.download(), portable.out_low.download()) == (HD == 96));
    }
}

namespace {

// Runs attention in BF16 and in FP8 on some of a batch's sequences.
struct Sequences {
    const reference::AttentionShape shape;
    const size_t values = shape.elements(), inputs = shape.qkv_elements(), rows = shape.rows();
    const size_t parts =  // of the bias gradient
        static_cast<size_t>(shape.B) * div_up(shape.T, hopper::kBackwardTile) * shape.qkv_width();
    DeviceArray<bf16> out{values}, out_low{values}, dqkv{inputs};
    DeviceArray<float> lse{rows}, delta{rows}, scratch{parts}, dbias{static_cast<size_t>(shape.qkv_width())};
    QuantizedArrays<e4m3> output{values, used_state(100.0f)};
    QuantizedArrays<e5m2> gradient{inputs, used_state(1000.0f)};
    DeviceArray<unsigned> tickets{std::vector<unsigned>(1)};

    explicit Sequences(const reference::AttentionShape& s) : shape(s) {}

    // Transposed codes are written for the whole batch only.
    void run(const DeviceArray<bf16>& qkv, const DeviceArray<bf16>& dout, int first, int B) {
        const auto from = [&](auto& array) { return array.get() + array.size() / shape.B * first; };
        const bool all = B == shape.B;
        const int T = shape.T;
        const AttentionHeads heads = shape.heads();
        attention_forward<bf16>(from(out), from(out_low), from(lse), from(qkv), B, T, heads, tickets, test_stream());
        attention_backward<bf16>(from(dqkv), from(delta), from(dout), from(qkv), from(out), from(out_low), from(lse), B,
                                 T, heads, tickets, test_stream());
        attention_forward_fp8({from(output.row), all ? output.transposed.get() : nullptr, output.state}, from(out),
                              from(out_low), from(lse), from(qkv), B, T, heads, QuantizePass::train, tickets,
                              test_stream());
        attention_backward_fp8({from(gradient.row), all ? gradient.transposed.get() : nullptr, gradient.state}, dbias,
                               from(scratch), from(delta), from(dout), from(qkv), from(out), from(out_low), from(lse),
                               B, T, heads, false, QuantizePass::train, tickets, test_stream());
    }
};

}  // namespace

// The specifications have so few tiles that no block of a card takes a second one. Here each takes several.
TEST_CASE("Hopper's attention has the same bits for many sequences in one launch as for one after the other") {
    test_stream();
    if (!is_hopper()) return;
    for (const int HD : {64, 128}) {
        CAPTURE(HD);
        reference::AttentionShape s{device_info().multiprocessors, 144, 2, HD, 2};
        s.kernels = Kernels::automatic;
        const DeviceArray<bf16> qkv(random_normal<bf16>(s.qkv_elements(), 1.0f, 7)),
            dout(random_normal<bf16>(s.elements(), 1.0f, 8));
        Sequences together(s), apart(s);
        together.run(qkv, dout, 0, s.B);
        for (int b = 0; b < s.B; b++) apart.run(qkv, dout, b, 1);
        const auto same = [](const auto& a, const auto& b) { return same_bits(a.download(), b.download()); };
        CHECK(same(together.out, apart.out));
        CHECK(same(together.out_low, apart.out_low));
        CHECK(same(together.lse, apart.lse));
        CHECK(same(together.delta, apart.delta));
        CHECK(same(together.dqkv, apart.dqkv));
        CHECK(same(together.scratch, apart.scratch));
        CHECK(same(together.output.row, apart.output.row));
        CHECK(same(together.output.state, apart.output.state));
        CHECK(same(together.gradient.row, apart.gradient.row));
        CHECK(same(together.gradient.state, apart.gradient.state));
        CHECK(same_bits(together.output.transposed.download(),
                        reference::turned(together.output.row.download(), s.tokens(), s.width())));
        CHECK(same_bits(together.gradient.transposed.download(),
                        reference::turned(together.gradient.row.download(), s.tokens(), s.qkv_width())));
        CHECK(together.tickets.download()[0] == 0);
    }
}
