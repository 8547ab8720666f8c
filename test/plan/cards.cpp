// The names of cards, as drivers report them and as people type them, and the rates that predictions use: each measured
// rate replaces the table's.
#include "llmc/plan/cards.h"

#include <doctest/doctest.h>

#include <set>

#include "llmc/plan/plan.h"

using namespace llmc;

namespace {

std::string short_name_of(const char* device) {
    const auto gpu = find_gpu(device);
    return gpu ? gpu->short_name : "(unknown)";
}

}  // namespace

TEST_CASE("gpu table: names that drivers report, of which the longest match wins") {
    const std::pair<const char*, const char*> names[] = {{"NVIDIA H100 80GB HBM3", "h100"},
                                                         {"NVIDIA H100 PCIe", "h100-pcie"},
                                                         {"NVIDIA H100 NVL", "h100-nvl"},
                                                         {"NVIDIA H200", "h200"},
                                                         {"NVIDIA H200 NVL", "h200-nvl"},
                                                         {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                                                         {"NVIDIA A100-SXM4-80GB", "a100"},
                                                         {"NVIDIA A100 80GB PCIe", "a100-pcie"},
                                                         {"NVIDIA L4", "l4"},
                                                         {"NVIDIA L40S", "l40s"},
                                                         {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                                         {"NVIDIA GeForce RTX 4090 D", "rtx4090d"},
                                                         {"NVIDIA B200", "b200"},
                                                         {"NVIDIA GB200", "gb200"},
                                                         {"NVIDIA GeForce RTX 4070", "rtx4070"},
                                                         {"NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper"},
                                                         {"NVIDIA H20", "h20"},
                                                         {"NVIDIA H20-3e", "h20-3e"},
                                                         {"NVIDIA GB10", "gb10"}};
    for (const auto& [device, name] : names) CHECK(short_name_of(device) == name);
}

TEST_CASE("gpu table: cards with similar names are unknown") {
    // RTX A4000 holds the letters A40, and GB300 those of B300.
    for (const char* device :
         {"NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H200 MIG 1g.18gb", "NVIDIA RTX A4000", "NVIDIA A100X",
          "NVIDIA GB300", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
          "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GH200 144G HBM3e", "Tesla T4", "host (2 threads)",
          ""})
        CHECK_MESSAGE(short_name_of(device) == "(unknown)", device);
}

TEST_CASE("gpu table: short names in any spelling") {
    CHECK(find_gpu_by_short_name("h200")->short_name == "h200");
    CHECK(find_gpu_by_short_name("H100-PCIe")->short_name == "h100-pcie");
    CHECK(find_gpu_by_short_name("h100 pcie")->short_name == "h100-pcie");
    CHECK(find_gpu_by_short_name("RTX 4090")->short_name == "rtx4090");
    CHECK(find_gpu_by_short_name("NVIDIA H100 80GB HBM3")->short_name == "h100");
    CHECK(find_gpu_by_short_name("GeForce rtx4090")->short_name == "rtx4090");
    CHECK(find_gpu_by_short_name("l4")->short_name == "l4");
    CHECK(!find_gpu_by_short_name("h300"));
    CHECK(!find_gpu_by_short_name(""));
    std::set<std::string> seen;
    for (const std::string& name : gpu_short_names()) {
        CAPTURE(name);
        CHECK(seen.insert(name).second);
        REQUIRE(find_gpu_by_short_name(name));
        CHECK(find_gpu_by_short_name(name)->short_name == name);
    }
}

TEST_CASE("gpu table: predicted rates of GeForce cards are those of their multiprocessors and clocks") {
    struct Card {
        const char* name;
        int multiprocessors;
        double gigahertz;
    };
    for (const Card& card : {Card{"rtx4070", 46, 2.475},
                             {"rtx4070super", 56, 2.475},
                             {"rtx4070ti", 60, 2.61},
                             {"rtx4070tisuper", 66, 2.61},
                             {"rtx4080", 76, 2.505},
                             {"rtx4080super", 80, 2.55},
                             {"rtx4090", 128, 2.52},
                             {"rtx5060", 30, 2.497},
                             {"rtx5060ti", 36, 2.572},
                             {"rtx5070", 48, 2.512},
                             {"rtx5070ti", 70, 2.452},
                             {"rtx5080", 84, 2.617}}) {
        CAPTURE(card.name);
        const GpuSpec gpu = *find_gpu_by_short_name(card.name);
        CHECK(gpu.bf16_tflops == doctest::Approx(card.multiprocessors * card.gigahertz * 0.512).epsilon(0.002));
        CHECK(gpu.fp8_tflops == doctest::Approx(card.multiprocessors * card.gigahertz * 1.024).epsilon(0.002));
    }
}

TEST_CASE("gpu table: numbers are dense and plausible") {
    const GpuSpec h100 = *find_gpu_by_short_name("h100"), h200 = *find_gpu_by_short_name("h200");
    CHECK(h100.bf16_tflops == 989.4);
    CHECK(h100.fp8_tflops == 1978.9);
    CHECK(h100.bandwidth_gbs == doctest::Approx(3350).epsilon(0.001));
    CHECK(h200.bf16_tflops == h100.bf16_tflops);
    CHECK(h200.bandwidth_gbs == 4800);
    CHECK(find_gpu_by_short_name("a100")->fp8_tflops == 0);
    CHECK((h200.link == Link::nvlink && h200.link_gbs == 450));
    CHECK((find_gpu_by_short_name("h100-pcie")->link == Link::pcie));
    for (const std::string& name : gpu_short_names()) {
        CAPTURE(name);
        const GpuSpec gpu = *find_gpu_by_short_name(name);
        // Every FP8 tensor core so far has twice the BF16 rate.
        if (gpu.fp8_tflops > 0) CHECK(gpu.fp8_tflops == doctest::Approx(2 * gpu.bf16_tflops).epsilon(0.015));
        CHECK(gpu.memory_gib > 7);
        switch (gpu.link) {
            case Link::nvlink:
                CHECK((gpu.link_gbs >= 200 && gpu.link_gbs <= 900));
                break;
            case Link::pcie:
                CHECK((gpu.link_gbs == 32 || gpu.link_gbs == 64));
                break;
            case Link::network:
                CHECK((gpu.link_gbs == 25 || gpu.link_gbs == 50));
                break;
        }
        CHECK(gpu.memory_gib < 300);
        CHECK((gpu.multiprocessors >= 30 && gpu.multiprocessors <= 188));
        CHECK((gpu.capability >= 80 && gpu.capability <= 121));
        CHECK((gpu.capability >= 89) == (gpu.fp8_tflops > 0));
        CHECK(gpu.bandwidth_gbs >= 270);
        CHECK(gpu.bandwidth_gbs <= 8000);
    }
}

namespace llmc::test {
namespace {

// Ignores line breaks.
bool contains_words(std::string text, const std::string& part) {
    for (size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, " ");
    return text.find(part) != std::string::npos;
}

const Rates kAll = {{"bf16", 6e14}, {"fp8", 9e14}, {"copy", 4e12}, {"all_gather", 2e11}, {"reduce_scatter", 1e11}};

PlannedRun run_with(const Rates& rates) {
    PlannedRun run;
    run.config.model = find_model("gpt2");
    run.config.batch = 8, run.config.seq = 1024;
    run.config.precision = Precision::fp8;
    run.gpu = *find_gpu_by_short_name("h200");
    run.measured = {rates, "2026-01-02"};
    run.config.kernels = Kernels::portable;  // whose time follows from the card's rates
    return run;
}

}  // namespace

TEST_CASE("card rates: a measured rate replaces the table's") {
    const GpuSpec gpu = *find_gpu_by_short_name("h200");
    const CardRates table(gpu, {}), all(gpu, {kAll, ""}), some(gpu, {{{"fp8", 9e14}, {"all_gather", 2e11}}, ""});
    CHECK(table.bf16_tflops == doctest::Approx(790));
    CHECK(table.fp8_tflops == doctest::Approx(1450));
    CHECK(table.peak_tflops == 989.4);
    CHECK(table.bandwidth_gbs == doctest::Approx(4200));
    CHECK(table.all_gather_gbs == doctest::Approx(350));
    CHECK(table.reduce_scatter_gbs == table.all_gather_gbs);
    CHECK(all.bf16_tflops == doctest::Approx(600));
    CHECK(all.fp8_tflops == doctest::Approx(900));
    CHECK(all.peak_tflops == doctest::Approx(600 * 989.4 / 790));  // attention is slower as products are
    CHECK(all.bandwidth_gbs == doctest::Approx(4000));
    CHECK(all.all_gather_gbs == doctest::Approx(200));
    CHECK(all.reduce_scatter_gbs == doctest::Approx(100));
    CHECK(some.bf16_tflops == table.bf16_tflops);
    CHECK(some.fp8_tflops == doctest::Approx(900));
    CHECK(some.peak_tflops == table.peak_tflops);
    CHECK(some.bandwidth_gbs == table.bandwidth_gbs);
    CHECK(some.all_gather_gbs == doctest::Approx(200));
    CHECK(some.reduce_scatter_gbs == table.reduce_scatter_gbs);
}

TEST_CASE("card rates: a step's time follows from them, and the plan names their sources") {
    const StepTime before = step_time(run_with({}), Precision::bf16, 1);
    const auto times = [&](const Rates& rates) { return step_time(run_with(rates), Precision::bf16, 1); };
    const auto kernels = [](const Rates& rates) { return TimeModel(*find_gpu_by_short_name("h200"), {rates, ""}); };
    const StepTime slow = times({{"bf16", 3.75e14}}), thin = times({{"copy", 2.1e12}});
    CHECK((slow.products > 1.6 * before.products && slow.products < 2 * before.products));  // the rest is memory's
    CHECK((slow.attention > 1.2 * before.attention && slow.attention < 2 * before.attention));
    CHECK(slow.elementwise == before.elementwise);
    CHECK(kernels({{"copy", 2.1e12}}).element_wise(1e9) == doctest::Approx(2 * kernels({}).element_wise(1e9)));
    CHECK((thin.elementwise > 1.6 * before.elementwise && thin.elementwise < 2 * before.elementwise));  // and launches
    CHECK(thin.optimizer == doctest::Approx(2 * before.optimizer));
    CHECK((thin.products > before.products && thin.products < 1.3 * before.products));
    CHECK(times({{"fp8", 1e12}, {"all_gather", 1e9}}).total() == before.total());
    const auto said = [&](const Rates& rates) { return describe_plan(run_with(rates), {}); };
    CHECK(contains_words(said({}), " Rates: built-in table for this card, not measured here.\n"));
    CHECK(contains_words(said({}), "from public rates"));
    CHECK(contains_words(said(kAll),
                         "Measured on this kind of card (2026-01-02): matmuls in bf16, matmuls in fp8, memory.\n"));
    CHECK(contains_words(said(kAll), "Large matmuls at 600 TFLOP/s in bf16 and 900 in fp8"));
    CHECK(contains_words(said(kAll), "3.7 TB/s"));
    CHECK(contains_words(said({{"copy", 4e12}}),
                         "(2026-01-02): memory. From the table of cards: matmuls in bf16, matmuls"));
    PlannedRun old = run_with({{"copy", 4e12}, {"bf16", 6e14}});
    old.gpu = *find_gpu_by_short_name("a100");
    CHECK(!contains_words(describe_plan(old, {}), "From the table of cards"));  // the card has no FP8
}

TEST_CASE("card rates: waits for other ranks") {
    StagePlan plan;
    plan.stage = 1;
    plan.sent.group = 8;
    plan.sent.first = 1;  // nothing of it is hidden
    plan.sent.forwards = plan.sent.backwards = 1;
    const auto waits = [&](double weights, double gradients, const Rates& rates) {
        plan.sent.weights = {0, weights}, plan.sent.gradients = {0, gradients};
        return predict_step(run_with(rates), plan).waits;
    };
    CHECK(waits(35e9, 0, {}) == doctest::Approx(100));
    CHECK(waits(35e9, 0, kAll) == doctest::Approx(175));
    CHECK(waits(0, 35e9, kAll) == doctest::Approx(350));
    const GpuSpec gpu = run_with({}).gpu;
    CHECK(contains_words(describe_links(gpu, {}), "Links are assumed: NVLink at 350 GB/s"));
    CHECK(contains_words(describe_links(gpu, {kAll, "2026-01-02"}),
                         "all_gather 200 GB/s, reduce_scatter 100 GB/s per rank"));
    CHECK(!contains_words(describe_links(gpu, {kAll, "2026-01-02"}), "Links are assumed"));
    const GpuSpec gb10 = *find_gpu_by_short_name("gb10");
    CHECK(CardRates(gb10, {}).all_gather_gbs == 25);
    CHECK(
        contains_words(describe_links(gb10, {}), "Links are assumed: a network of 25 GB/s a direction for every GPU"));
    const auto title = [&](const Rates& rates) { return describe_scaling(run_with(rates), {}); };
    CHECK(contains_words(title({}), "nothing here is measured"));
    CHECK(contains_words(title(kAll), "from rates that were measured"));
    CHECK(contains_words(title(kAll), "Links were measured"));
}

TEST_CASE("card rates: a card that is not in the table has its measured rates") {
    DeviceInfo device;
    device.name = "NVIDIA N1", device.total_memory = size_t{48} << 30;
    device.multiprocessors = 100, device.compute_capability = 121;
    const std::optional<GpuSpec> card = measured_card(device, {kAll, ""});
    REQUIRE(card.has_value());
    CHECK(card->match == "NVIDIA N1");
    CHECK(card->memory_gib == 48);
    CHECK((card->multiprocessors == 100 && card->capability == 121));
    CHECK(card->fp8_tflops == doctest::Approx(900));
    CHECK(CardRates(*card, {kAll, ""}).bandwidth_gbs == doctest::Approx(4000));
    CHECK(contains_words(describe_links(*card, {}), "PCIe at 20 GB/s"));
    CHECK(!measured_card(device, {{{"fp8", 9e14}, {"bf16", 6e14}}, ""}));
    CHECK(!measured_card(device, {{{"fp8", 9e14}, {"copy", 4e12}}, ""}));
    CHECK(measured_card(device, {{{"bf16", 6e14}, {"copy", 4e12}}, ""})->fp8_tflops == 0);
}

}  // namespace llmc::test
