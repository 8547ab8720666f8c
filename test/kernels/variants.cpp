// The registry of variants, and the sets that --kernels selects.
#include "llmc/kernels/variants.h"

#include <doctest/doctest.h>

#include <set>

#include "llmc/base/error.h"
#include "test/helpers.h"

using namespace llmc;

namespace {

using Names = std::vector<std::string>;

std::string refusal(const std::string& text, int card = 90) {
    return test::error_of([&] { kernel_set(wanted_kernels(text), card, Formats::fp8); }, ExitCode::bad_flags);
}

}  // namespace

TEST_CASE("variants: entries are in the order of their numbers, and names are distinct") {
    std::set<std::string> names;
    for (const KernelVariantEntry& entry : kernel_variants()) {
        CAPTURE(entry.name);
        CHECK(&kernel_variant(entry.variant) == &entry);
        CHECK(&kernel_variant(std::string(entry.name)) == &entry);
        CHECK(entry.first_card <= entry.last_card);
        CHECK(names.insert(entry.name).second);
    }
}

TEST_CASE("variants: a set has the members that were added and not removed") {
    KernelSet set;
    CHECK(set.names().empty());
    set.add(KernelVariant::attention_fp8);
    set.add(KernelVariant::gelu_fp8);
    set.add(KernelVariant::gelu_fp8);
    CHECK(set.names() == Names{"gelu_fp8", "attention_fp8"});
    CHECK(!set.has(KernelVariant::gelu_backward_fp8));
    set.remove(KernelVariant::gelu_fp8);
    set.remove(KernelVariant::gelu_backward_fp8);
    CHECK(set.names() == Names{"attention_fp8"});
}

TEST_CASE("variants: portable, auto, and lists") {
    CHECK(kernel_set(wanted_kernels("portable"), 90, Formats::fp8) == KernelSet());
    const KernelSet all = kernel_set({}, 90, Formats::fp8);
    KernelSet with_hopper = KernelSet::common();
    with_hopper.add(KernelVariant::hopper_attention);
    with_hopper.add(KernelVariant::hopper_attention_backward_split);
    with_hopper.add(KernelVariant::hopper_matmul_gelu);
    with_hopper.add(KernelVariant::hopper_matmul_gelu_backward);
    CHECK(all == with_hopper);
    CHECK(kernel_set({}, 89, Formats::fp8) == KernelSet::common());
    CHECK(kernel_set({}, 100, Formats::fp8) == KernelSet::common());
    const KernelSet on_host = kernel_set({}, kHostDevice, Formats::fp8);
    CHECK(on_host.names().size() == kernel_variants().size() - 4);
    CHECK(!on_host.has(KernelVariant::hopper_attention));
    CHECK(on_host.has(KernelVariant::attention_fp8));
    CHECK(on_host.has(KernelVariant::host_attention));
    CHECK(!all.has(KernelVariant::host_attention));
    CHECK(kernel_set({}, kHostDevice, Formats::bf16).has(KernelVariant::host_attention));
    CHECK(kernel_set({}, std::nullopt, Formats::fp8) == all);
    CHECK(kernel_set({}, 75, Formats::fp8) == KernelSet());  // older than all
    CHECK(kernel_set({}, 90, Formats::bf16).names() == Names{"hopper_attention", "hopper_attention_backward_split"});
    CHECK(kernel_set({}, 80, Formats::bf16) == KernelSet());
    CHECK(kernel_set({}, 90, Formats::fp32) == KernelSet());
    CHECK(kernel_set(wanted_kernels("hopper_attention"), 90, Formats::fp32) == KernelSet());
    CHECK(kernel_set({}, kHostDevice, Formats::fp32).has(KernelVariant::host_attention));
    const Names two{"layernorm_fp8", "gelu_backward_fp8"};
    CHECK(kernel_set(wanted_kernels("gelu_backward_fp8,layernorm_fp8"), 90, Formats::fp8).names() == two);
    CHECK(kernel_set(wanted_kernels("gelu_backward_fp8,layernorm_fp8"), std::nullopt, Formats::fp8).names() == two);
    CHECK(kernel_set(wanted_kernels("gelu_fp8"), 90, Formats::bf16) == KernelSet());
}

TEST_CASE("variants: an unknown name is refused with a list of all names") {
    const std::string all =
        "auto, portable, layernorm_fp8, gelu_fp8, attention_fp8, layernorm_backward_fp8, gelu_backward_fp8, "
        "attention_backward_fp8, hopper_attention, hopper_attention_backward_split, "
        "hopper_matmul_gelu, hopper_matmul_gelu_backward, host_attention, host_classifier, "
        "host_norm, host_activation, "
        "host_rope, "
        "host_quantize, "
        "host_embedding, host_optimizer, host_sums";
    CHECK(refusal("gleu_fp8") == "--kernels 'gleu_fp8' is not one of " + all);
    for (const char* text : {"gelu_fp8,", "", ",", "gelu_fp8,auto", "Auto", "gelu_fp8, layernorm_fp8"}) {
        CAPTURE(text);
        CHECK(refusal(text).find(" is not one of " + all) != std::string::npos);
        CHECK_THROWS_AS(wanted_kernels(text), Error);
    }
    for (const char* text : {"portable", "auto", "gelu_fp8", "gelu_fp8,attention_fp8"})
        CHECK_NOTHROW(wanted_kernels(text));
    CHECK(refusal("gelu_fp8", 75) ==
          "--kernels gelu_fp8: it is for compute capability 8.0 and later, and CPUs, and this is a card of compute "
          "capability 7.5; use --kernels auto");
    CHECK(refusal("host_norm", 90) ==
          "--kernels host_norm: it is for CPUs, and this is a card of compute capability 9.0; use --kernels auto");
}

TEST_CASE("variants: which cards an entry is for") {
    KernelVariantEntry entry = kernel_variant(KernelVariant::gelu_fp8);
    const auto runs_on = [&] {
        std::vector<int> cards;
        for (const int card : {kHostDevice, 75, 80, 89, 90, 100, 120, 130})
            if (entry.runs_on(card)) cards.push_back(card);
        return cards;
    };
    CHECK(runs_on() == std::vector{kHostDevice, 80, 89, 90, 100, 120, 130});
    entry.first_card = entry.last_card = 90, entry.on_host = false;
    CHECK(runs_on() == std::vector{90});
    CHECK(entry.cards() == "compute capability 9.0");
    entry.last_card = 100;
    CHECK(runs_on() == std::vector{90, 100});
    CHECK(entry.cards() == "compute capability 9.0 to 10.0");
}
