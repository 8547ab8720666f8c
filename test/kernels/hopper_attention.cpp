// Attention's Hopper variants meet attention's specifications. Skipped where the device is no Hopper card.
#include <algorithm>
#include <string>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/hopper/attention.h"
#include "llmc/kernels/variants.h"
#include "test/kernels/attention_run.h"
#include "test/kernels/specifications.h"

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
bool is_of_backward(const std::string& name) {
    return is_of_variants(name) && name.find("forward") == std::string::npos;
}

}  // namespace

TEST_CASE("Hopper's attention, plain and quantizing, meets attention's specifications") {
    if (!is_hopper()) return;
    const OnHopper chosen("hopper_attention,hopper_attention_backward");
    check_specifications(check::add_attention_tests, is_of_variants);
}

TEST_CASE("Hopper's backward of attention in two kernels meets attention's specifications") {
    if (!is_hopper()) return;
    const OnHopper chosen("hopper_attention_backward_split");
    check_specifications(check::add_attention_tests, is_of_backward);
}

TEST_CASE("Hopper's attention is another kernel: its sums round differently") {
    if (!is_hopper()) return;
    for (const int HD : {64, 128}) {
        const reference::AttentionShape s{2, 392, 4, HD, 2};
        const std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.5f, 5), dout(s.elements());
        test::attention::Run<bf16> portable(s, qkv, dout), run(s, qkv, dout);
        portable.forward();
        const OnHopper chosen("hopper_attention");
        run.forward();
        CHECK(test::attention::bytes_of(run.out_low) != test::attention::bytes_of(portable.out_low));
    }
}

// The two kernels need not round differently: they add up in the portable kernels' order, and on the virtual GPU they
// have their bits. That they run at all is seen in test_card_check.py, where they are made wrong.
TEST_CASE("Hopper's backward of attention in one kernel rounds differently, and goes before the two kernels") {
    if (!is_hopper()) return;
    for (const int HD : {64, 96, 128}) {
        CAPTURE(HD);
        const reference::AttentionShape s{2, 392, 4, HD, 2};
        test::attention::Run<bf16> run(s, random_normal<bf16>(s.qkv_elements(), 1.5f, 5),
                                       random_normal<bf16>(s.elements(), 1.0f, 6));
        run.forward();
        run.backward();
        const auto portable = test::attention::bytes_of(run.dqkv), delta = test::attention::bytes_of(run.delta);
        DeviceArray<float> partials(std::max<size_t>(1, hopper::attention_backward_partials(s.B, s.T, s.heads())));
        const auto gradients = [&](const std::string& variants) {
            const OnHopper chosen(variants);
            attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, run.out_low, run.lse, s.B, s.T,
                                     s.heads(), test_stream(), nullptr, partials);
            CHECK(test::attention::bytes_of(run.delta) == delta);
            return test::attention::bytes_of(run.dqkv);
        };
        const std::string whole = "hopper_attention_backward", split = "hopper_attention_backward_split";
        const auto of_whole = gradients(whole), of_split = gradients(split);
        CHECK((of_whole != portable) == (HD == 64));
        CHECK(gradients(whole + "," + split) == (HD == 64 ? of_whole : of_split));
    }
}
