// Records as lines: every number reads back exactly, and values that are not finite are named. Skipped steps, and the
// counts of FP8 products with which a run may continue.
#include "llmc/log/metrics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/comm/comm.h"
#include "llmc/fp8/registry.h"
#include "llmc/log/run_directory.h"
#include "llmc/shard/arena.h"
#include "test/helpers.h"
#include "test/log/example_record.h"

using namespace llmc;
using namespace llmc::test;
using nlohmann::json;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

json parsed(const std::string& line) { return parse_json(line); }

StepRecord skipped(double loss, double norm, int bad_tensor = 0, ExceededLimits spike = {}) {
    StepRecord record;
    record.step = 37;
    record.loss = static_cast<float>(loss);
    record.norm = static_cast<float>(norm);
    record.bad_tensor = bad_tensor;
    record.spike = spike;
    record.consecutive_skips = 20;
    return record;
}

}  // namespace

TEST_CASE("metrics: a step record has the promised fields") {
    const json line = parsed(metrics_line(example()));
    CHECK(line["step"] == 7);
    CHECK(line["tokens"] == 28672);
    CHECK(line["ms"] == 82.125);
    CHECK(line["tokens_per_s"] == 49875.9);
    CHECK(line["products"] == json{{"fp8", 0}, {"bf16", 150}, {"fp32", 3}});
    CHECK_FALSE(line.contains("source_tokens"));
    StepRecord mixed = example();
    mixed.source_tokens = {{"a", 20000}, {"b", 8672}};
    CHECK(parsed(metrics_line(mixed))["source_tokens"] == json{{"a", 20000}, {"b", 8672}});
    StepRecord emulated = example();
    emulated.products = {48, 3, 0, 40};
    CHECK(parsed(metrics_line(emulated))["products"] == json{{"fp8", 48}, {"bf16", 3}, {"fp32", 0}, {"emulated", 40}});
    CHECK(line["skipped"] == 2);
    CHECK(line["loss_scale"] == 65536);
    for (const char* name : {"mfu", "watts", "joules_per_token", "sm_clock_mhz", "temperature_c"})
        CHECK(!line.contains(name));
    StepRecord measured = example();
    measured.watts = 700.5;
    measured.joules_per_token = 0.25;
    CHECK(parsed(metrics_line(measured))["watts"] == 700.5);
    measured.mfu = 0.5;
    measured.sm_clock_mhz = 1755;
    measured.temperature_c = 61;
    const json cards = parsed(metrics_line(measured));
    CHECK(cards["joules_per_token"] == 0.25);
    CHECK(cards["mfu"] == 0.5);
    CHECK(cards["sm_clock_mhz"] == 1755);
    CHECK(cards["temperature_c"] == 61);
    CHECK(!line.contains("nonfinite"));
    CHECK(metrics_line(example()).find('\n') == std::string::npos);
    CHECK(metrics_line(example()).rfind("{\"step\":7,\"loss\":", 0) == 0);
}

TEST_CASE("metrics: a verified step, and the first of fresh weights") {
    StepRecord record = example();
    for (const char* key : {"verified", "verify_ms", "fresh_weights"})
        CHECK(!parsed(metrics_line(record)).contains(key));
    record.verified = VerifiedStep{12.5, ""};
    record.fresh = FreshLoss{10.75, 11.0};
    const json line = parsed(metrics_line(record));
    CHECK(line["verified"] == true);
    CHECK(line["verify_ms"] == 12.5);
    CHECK(line["fresh_weights"] == json{{"ln_vocab", 10.75}, {"expected_loss", 11.0}});
    record.verified->difference = "output of h.3 differs";
    CHECK(parsed(metrics_line(record))["verified"] == false);
}

TEST_CASE("metrics: the batch's fingerprint, and a spike only where there was one") {
    StepRecord record = example();
    CHECK(!parsed(metrics_line(record)).contains("batch_hash"));
    CHECK(!parsed(metrics_line(record)).contains("spike"));
    record.batch_hash = "00000000000001fe";
    record.spike.norm = 0.5f;
    CHECK(parsed(metrics_line(record))["batch_hash"] == "00000000000001fe");
    CHECK(parsed(metrics_line(record))["spike"] == json{{"norm", 0.5}});
    record.spike.loss = 4.5f;
    CHECK(parsed(metrics_line(record))["spike"] == json{{"loss", 4.5}, {"norm", 0.5}});
}

TEST_CASE("metrics: floats read back to the same bits") {
    uint32_t bits = 0x2545f491;
    for (int i = 0; i < 20000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        if (!std::isfinite(value)) continue;
        StepRecord record = example();
        record.loss = value;
        const float back = static_cast<float>(parsed(metrics_line(record))["loss"].get<double>());
        if (std::memcmp(&back, &value, sizeof value) != 0) FAIL("loss of bits " << bits << " reads back as " << back);
    }
}

TEST_CASE("metrics: numbers that are not finite are null, and \"nonfinite\" names them") {
    StepRecord record = example();
    record.loss = -NAN;
    record.norm = INFINITY;
    const json line = parsed(metrics_line(record));
    CHECK(line["loss"].is_null());
    CHECK(line["norm"].is_null());
    CHECK(line["nonfinite"] == json{{"loss", "nan"}, {"norm", "inf"}});
    const json val = parsed(metrics_line(ValRecord{3, {{"a", -INFINITY}}}));
    CHECK(val["nonfinite"] == json{{"val_loss_a", "-inf"}});
    CHECK(val["val_perplexity_a"] == 0.0);
    CHECK(main_log_line(record) == "s:6 trl:nan lr:0.000300 norm:inf");
}

TEST_CASE("metrics: validation records and llm.c's log lines") {
    const ValRecord val = {20, {{"", 3.25f}, {"code", 2.5f, 1.75, 0xabc}}};
    CHECK(parsed(metrics_line(val)) == json{{"step", 20},
                                            {"val_loss", 3.25},
                                            {"val_perplexity", std::exp(3.25)},
                                            {"val_loss_code", 2.5},
                                            {"val_perplexity_code", std::exp(2.5)},
                                            {"val_bpb_code", 1.75},
                                            {"val_hash_code", "0000000000000abc"},
                                            {"val_precision", "bf16"}});
    CHECK(main_log_line(val) == "s:20 tel:3.2500");
    const ValRecord scored = {20, {{"", 3.25f}}, {{"hellaswag", 8, 0.25, 0.375}, {"piqa", 4, 0.5, 0.75}}};
    CHECK(parsed(metrics_line(scored))["hellaswag_acc"] == 0.25);
    CHECK(parsed(metrics_line(scored))["hellaswag_acc_norm"] == 0.375);
    CHECK(parsed(metrics_line(scored))["piqa_acc"] == 0.5);
    CHECK(parsed(metrics_line(scored))["piqa_acc_norm"] == 0.75);
    CHECK(main_log_line(scored) == "s:20 tel:3.2500\ns:20 eval:0.3750");
    CHECK(main_log_line(ValRecord{20, {}, scored.tasks}) == "s:20 eval:0.3750");
    CHECK(main_log_line(example()) == "s:6 trl:10.9877 lr:0.000300 norm:1.23");  // llm.c counts steps from 0
}

TEST_CASE("records: an FP8 run has the FP8 products of its layers, and does not emulate all of them unasked") {
    CHECK_NOTHROW(require_fp8_products({48, 3, 0, 0}, 48, false));
    CHECK_NOTHROW(require_fp8_products({48, 3, 0, 47}, 48, false));  // a few missing products are reported and counted
    CHECK_NOTHROW(require_fp8_products({48, 3, 0, 48}, 48, true));
    CHECK_NOTHROW(require_fp8_products({0, 51, 0, 0}, 0, false));  // --fp8-layers none
    CHECK_THROWS_WITH_AS(require_fp8_products({47, 4, 0, 0}, 48, true),
                         "a micro-step ran 47 FP8 matmuls instead of the 48 of its FP8 layers", Error);
    CHECK(contains(error_of([&] {
                       require_fp8_products({48, 3, 0, 48}, 48, false);
                   }),
                   "cuBLASLt refused all 48 FP8 matmuls"));
}

TEST_CASE("skips: the reason is the first thing that went wrong") {
    Fp8Registry fp8({}, Comm::self());
    for (const char* layer : {"h.3.fc", "h.3.fc_proj"}) fp8.add(layer);
    const int x = fp8.find("h.3.fc_proj.x") + 1, dout = fp8.find("h.3.fc_proj.dout") + 1;
    const std::string tensor = "the first FP8 tensor with a value that is not finite was h.3.fc_proj.";
    CHECK(why_skipped(skipped(3.0, kInf, dout), &fp8) == tensor + "dout");
    CHECK(why_skipped(skipped(3.0, 1.0, dout), &fp8) == tensor + "dout");
    CHECK(why_skipped(skipped(NAN, NAN, x), &fp8) == tensor + "x");
    // A non-finite loss is reported before any gradient.
    CHECK(why_skipped(skipped(-NAN, NAN, dout), &fp8) == "the loss was nan");
    CHECK(why_skipped(skipped(kInf, NAN), &fp8) == "the loss was inf");
    CHECK(why_skipped(skipped(3.0, kInf), &fp8) == "the gradient norm was inf");
    CHECK(why_skipped(skipped(3.0, -NAN), &fp8) == "the gradient norm was nan");
    CHECK(why_skipped(skipped(9.0, 1.0, 0, {4.5f, {}}), &fp8) == "the loss was a spike, 9 where 4.5 is the limit");
    CHECK(why_skipped(skipped(9.0, 2.0, 0, {4.5f, 1.25f}), &fp8) == "the loss was a spike, 9 where 4.5 is the limit");
    CHECK(why_skipped(skipped(3.0, 2.0, 0, {{}, 1.25f}), &fp8) ==
          "the gradient norm was a spike, 2 where 1.25 is the limit");
}

TEST_CASE("skips: too many in a row stop the run") {
    const StepRecord result = skipped(NAN, NAN);
    CHECK_NOTHROW(check_skips(result, 0, nullptr));  // any number
    CHECK_NOTHROW(check_skips(result, 21, nullptr));
    for (const int most : {20, 1}) {
        CHECK(error_of([&] { check_skips(result, most, nullptr); }, ExitCode::bad_numbers) ==
              "20 steps skipped in a row; in the last, step 37, the loss was nan; lower -l, or see --max-skips");
    }
    StepRecord fine = result;
    fine.consecutive_skips = 0;
    CHECK_NOTHROW(check_skips(fine, 1, nullptr));
}
