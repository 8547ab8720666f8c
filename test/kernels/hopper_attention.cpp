// Attention's kernels for Hopper meet attention's specifications. Skipped where the device is no Hopper card.
#include "llmc/kernels/attention.h"
#include "test/kernels/attention_run.h"
#include "test/kernels/check_specifications.h"

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
