// Attention's Hopper variants meet attention's specifications. Skipped where the device is no Hopper card.
#include <string>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/variants.h"
#include "test/kernels/attention_run.h"
#include "test/kernels/check_specifications.h"

using namespace llmc;
using namespace llmc::test;

namespace {

bool is_hopper() {
    test_stream();
    const int card = device_info().compute_capability;
    return kernel_variant(KernelVariant::hopper_attention).runs_on(card) && card != kHostDevice;
}

// While this lives, the tests' stream runs the variants.
struct OnHopper {
    explicit OnHopper(const std::string& names) { choose_kernels(test_stream(), *wanted_kernels(names)); }
    ~OnHopper() { choose_kernels(test_stream(), {}); }
};

// Specifications of what the variants compute. All others run the portable kernels, which have tests of their own.
bool is_of_variants(const std::string& name) {
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    return (has("HD=64 ") || has("HD=128 ")) && !has("fp32") && !has("max_logits");
}
bool is_of_forward(const std::string& name) {
    return is_of_variants(name) && name.find("backward") == std::string::npos;
}
bool is_of_backward(const std::string& name) {
    return is_of_variants(name) && name.find("forward") == std::string::npos;
}

}  // namespace

TEST_CASE("Hopper's attention, plain and quantizing, meets attention's specifications") {
    if (!is_hopper()) return;
    const OnHopper chosen("hopper_attention");
    check_specifications(check::add_attention_tests, is_of_forward);
}

TEST_CASE("Hopper's backward of attention meets attention's specifications") {
    if (!is_hopper()) return;
    const OnHopper chosen("hopper_attention_backward_split");
    check_specifications(check::add_attention_tests, is_of_backward);
}

// delta is computed by the kernel that owns queries, from tiles in shared memory at head dimension 64 and from global
// memory at 128. T = 392 leaves part of the last tile without queries, and a block takes several tiles.
TEST_CASE("Hopper's backward of attention computes delta with the portable kernel's bits") {
    if (!is_hopper()) return;
    for (const int HD : {64, 128}) {
        for (const int T : {392, 40}) {
            CAPTURE(HD);
            CAPTURE(T);
            const reference::AttentionShape s{2, T, 4, HD, 2};
            test::attention::Run<bf16> run(s);  // on the portable kernels
            const std::vector<float> portable = run.delta.download();
            run.delta.upload(std::vector<float>(portable.size()));
            const OnHopper chosen("hopper_attention_backward_split");
            run.backward();
            CHECK(same_bits(run.delta.download(), portable));
        }
    }
}

// The backward pass need not round differently: it adds up in the portable kernels' order, and on the virtual GPU it
// has their bits. That it runs at all is seen in test_check_card.py, where it is made wrong.
TEST_CASE("Hopper's attention is another kernel, whose sums round differently, at the head dimensions that it has") {
    if (!is_hopper()) return;
    for (const int HD : {64, 96, 128}) {
        CAPTURE(HD);
        const reference::AttentionShape s{2, 392, 4, HD, 2};
        const std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.5f, 5), dout(s.elements());
        test::attention::Run<bf16> portable(s, qkv, dout), run(s, qkv, dout);
        portable.forward();
        const OnHopper chosen("hopper_attention");
        run.forward();
        CHECK(same_bits(run.out_low.download(), portable.out_low.download()) == (HD == 96));
    }
}
