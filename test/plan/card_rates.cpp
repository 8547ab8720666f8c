// The rates that predictions go by: measured ones in place of the table's, each for itself.
#include "llmc/plan/card_rates.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "llmc/check/kept_results.h"
#include "llmc/plan/scaling.h"

namespace llmc::test {
namespace {

// Wherever lines are broken.
bool contains(std::string text, const std::string& part) {
    for (size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, " ");
    return text.find(part) != std::string::npos;
}

const Rates kAll = {{"bf16", 6e14}, {"fp8", 9e14}, {"copy", 4e12}, {"all_gather", 2e11}, {"reduce_scatter", 1e11}};

PlanInputs inputs(const Rates& rates) {
    PlanInputs in;
    in.gpu = *find_gpu_by_short_name("h200");
    in.batch = 8, in.precision = "fp8";
    in.measured = {rates, "2026-01-02"};
    return in;
}

}  // namespace

TEST_CASE("card rates: what was measured, else the table's") {
    const GpuSpec gpu = *find_gpu_by_short_name("h200");
    const CardRates table(gpu, {}), all(gpu, {kAll, ""}), some(gpu, {{{"fp8", 9e14}, {"all_gather", 2e11}}, ""});
    CHECK(table.bf16_tflops == doctest::Approx(750));
    CHECK(table.fp8_tflops == doctest::Approx(1350));
    CHECK(table.peak_tflops == 989.4);
    CHECK(table.bandwidth_gbs == doctest::Approx(4200));
    CHECK(table.all_gather_gbs == doctest::Approx(350));
    CHECK(table.reduce_scatter_gbs == table.all_gather_gbs);
    CHECK(all.bf16_tflops == doctest::Approx(600));
    CHECK(all.fp8_tflops == doctest::Approx(900));
    CHECK(all.peak_tflops == doctest::Approx(600 * 989.4 / 750));  // attention is slower as products are
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

TEST_CASE("card rates: a step takes the time that follows from them, and the plan says where they are from") {
    const ModelConfig model = find_model("gpt2");
    const PlanInputs table = inputs({});
    const StepTime before = ideal_step_time(model, table, "bf16", 1);
    const auto times = [&](const Rates& rates) { return ideal_step_time(model, inputs(rates), "bf16", 1); };
    CHECK(times({{"bf16", 3.75e14}}).products == doctest::Approx(2 * before.products));
    CHECK(times({{"bf16", 3.75e14}}).attention == doctest::Approx(2 * before.attention));
    CHECK(times({{"bf16", 3.75e14}}).elementwise == before.elementwise);
    CHECK(times({{"copy", 2.1e12}}).elementwise == doctest::Approx(2 * before.elementwise));
    CHECK(times({{"copy", 2.1e12}}).optimizer == doctest::Approx(2 * before.optimizer));
    CHECK(times({{"copy", 2.1e12}}).products == before.products);
    CHECK(times({{"fp8", 1e12}, {"all_gather", 1e9}}).total() == before.total());
    const auto said = [&](const Rates& rates) { return describe_plan(model, inputs(rates), {}, 0, 1); };
    CHECK(contains(said({}), " The card's rates are from the table of cards.\n"));
    CHECK(contains(said({}), "best public rate"));
    CHECK(contains(said(kAll),
                   "Measured by the card check on this card (2026-01-02): matmuls in bf16, matmuls in fp8, memory.\n"));
    CHECK(contains(said(kAll), "Matmuls at 600 TFLOP/s in bf16 and 900 in fp8"));
    CHECK(contains(said(kAll), "4.0 TB/s"));
    CHECK(contains(said({{"copy", 4e12}}), "(2026-01-02): memory. From the table of cards: matmuls in bf16, matmuls"));
    PlanInputs old = inputs({{"copy", 4e12}, {"bf16", 6e14}});
    old.gpu = *find_gpu_by_short_name("a100");
    CHECK(!contains(describe_plan(model, old, {}, 0, 1), "From the table of cards"));  // it has no FP8
}

TEST_CASE("card rates: waits for other ranks") {
    const ModelConfig model = find_model("gpt2");
    StagePlan plan;
    plan.stage = 1;
    plan.sent.group = 8;
    plan.sent.first = 1;  // all of it is waited for
    plan.sent.forwards = plan.sent.backwards = 1;
    const auto waits = [&](double weights, double gradients, const Rates& rates) {
        plan.sent.weights = {0, weights}, plan.sent.gradients = {0, gradients};
        return predict_step(model, inputs(rates), plan).waits;
    };
    CHECK(waits(35e9, 0, {}) == doctest::Approx(100));
    CHECK(waits(35e9, 0, kAll) == doctest::Approx(175));
    CHECK(waits(0, 35e9, kAll) == doctest::Approx(350));
    const GpuSpec gpu = inputs({}).gpu;
    CHECK(contains(describe_links(gpu, {}), "Links are assumed: NVLink at 350 GB/s"));
    CHECK(contains(describe_links(gpu, {kAll, "2026-01-02"}), "all_gather 200 GB/s, reduce_scatter 100 GB/s per rank"));
    CHECK(!contains(describe_links(gpu, {kAll, "2026-01-02"}), "Links are assumed"));
    const auto title = [&](const Rates& rates) { return describe_scaling(model, inputs(rates), {}); };
    CHECK(contains(title({}), "nothing here is measured"));
    CHECK(contains(title(kAll), "from rates that were measured"));
    CHECK(contains(title(kAll), "Links were measured"));
}

TEST_CASE("card rates: a card in no table is what was measured of it") {
    DeviceInfo device;
    device.name = "NVIDIA N1", device.total_memory = size_t{48} << 30;
    const std::optional<GpuSpec> card = measured_card(device, {kAll, ""});
    REQUIRE(card.has_value());
    CHECK(card->match == "NVIDIA N1");
    CHECK(card->memory_gib == 48);
    CHECK(card->fp8_tflops == doctest::Approx(900));
    CHECK(CardRates(*card, {kAll, ""}).bandwidth_gbs == doctest::Approx(4000));
    CHECK(contains(describe_links(*card, {}), "PCIe at 20 GB/s"));
    CHECK(!measured_card(device, {{{"fp8", 9e14}, {"bf16", 6e14}}, ""}));
    CHECK(!measured_card(device, {{{"fp8", 9e14}, {"copy", 4e12}}, ""}));
    CHECK(measured_card(device, {{{"bf16", 6e14}, {"copy", 4e12}}, ""})->fp8_tflops == 0);
}

TEST_CASE("card rates: those of kept results, and their date") {
    const std::filesystem::path directory =
        std::filesystem::temp_directory_path() / ("rates-" + std::to_string(getpid()));
    const KeptResults kept(directory.string(), {{"device", "A"}});
    CHECK(kept.date() == "");
    CHECK(kept.add({{"copy", {"memory", "", "", 0, {}, {{"copy", 4e12}}}}}) == "");
    CHECK(kept.add({{"links of 8 ranks", {"between ranks", "", "", 0, {}, {{"all_gather", 2e11}}}}}) == "");
    CHECK(kept.date().size() == std::string("2026-01-02").size());
    CHECK(rates_of(kept.load()) == Rates{{"copy", 4e12}, {"all_gather", 2e11}});
    CHECK(KeptResults(directory.string(), {{"device", "B"}}).date() == "");
    std::filesystem::remove_all(directory);
}

}  // namespace llmc::test
