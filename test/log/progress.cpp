// The progress line, its averages, and when a terminal shows status lines.
#include "llmc/log/progress.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "llmc/log/metrics.h"
#include "llmc/train/step_results.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

StepRecord progress_example() {
    StepRecord record;
    record.step = 12;
    record.loss = 3.12341f;
    record.norm = 0.81234f;
    record.lr = 3e-4f;
    record.ms = 82.14;
    record.tokens_per_s = 12462.8;  // of this step alone
    record.mfu = 0.8246;
    return record;
}

const Pace kPace = {400, 6231.4, size_t{1288490189}, 32};  // 1.2 GiB

}  // namespace

TEST_CASE("progress: the whole line") {
    CHECK(
        format_progress(progress_example(), kPace) ==
        "step    12/400 | loss 3.1234 | norm 0.8123 | lr 3.00e-04 | 82.1 ms | 6,231 tok/s | MFU 41.2% | mem 1.2 GiB | "
        "ETA 0:32");
}

TEST_CASE("progress: unknown numbers are not shown") {
    StepRecord record;
    record.step = 3;
    record.loss = -std::nanf("");
    record.norm = INFINITY;
    record.ms = 123456;
    CHECK(format_progress(record, {}) == "step     3 | loss nan | norm inf | lr 0.00e+00 | 123456 ms");
    record.consecutive_skips = 1;
    CHECK(contains(format_progress(record, {}), "| skipped"));
}

TEST_CASE("progress: a terminal that somebody watches") {
    using Variables = std::map<std::string, std::string>;
    const auto watched = [](bool is_terminal, const Variables& set) {
        return is_watched(is_terminal,
                          [&](const char* name) { return set.count(name) ? set.at(name).c_str() : nullptr; });
    };
    CHECK(watched(true, {}));
    CHECK(!watched(false, {}));
    CHECK(watched(true, {{"NO_COLOR", ""}, {"TERM", "xterm-256color"}}));
    CHECK(!watched(true, {{"NO_COLOR", "1"}}));
    CHECK(!watched(true, {{"TERM", "dumb"}}));
    // Nobody looks at a launcher's terminal.
    CHECK(!watched(true, {{"OMPI_COMM_WORLD_RANK", "0"}}));
    CHECK(!watched(true, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}));
    CHECK(!watched(true, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}));
    CHECK(!watched(true, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}));
    CHECK(watched(true, {{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}));  // a job's own shell
}

TEST_CASE("progress: validation line") {
    CHECK(format_validation({20, {{"", 3.5f}, {"code", 2.25f}}}) ==
          "val     20 | val_loss 3.5000 | val_loss_code 2.2500");
    CHECK(format_validation({20, {{"", 3.5f, 1.25}}}) == "val     20 | val_loss 3.5000 (1.2500 bits per byte)");
    CHECK(format_validation({20, {}, {{"arc_easy", 8, 0.25, 0.375}, {"piqa", 4, 0.5, 0.75}}}) ==
          "val     20 | arc_easy 0.2500 (0.3750 normalized) | piqa 0.5000 (0.7500 normalized)");
    CHECK(contains(format_validation({20, {{"", NAN}}}), "| val_loss nan"));
}

TEST_CASE("progress: MFU") {
    // 1e9 FLOP a token, 1e5 tokens a second = 1e14 FLOP/s, on two cards of 100 TFLOP/s.
    CHECK(model_flops_utilization(1e9, 1e5, 100, 2) == doctest::Approx(0.5));
}

TEST_CASE("progress: throughput leaves the first step out and is exact from the second") {
    Throughput speed;
    CHECK(!speed.tokens_per_s());
    speed.add(1000, 60000);
    CHECK(!speed.tokens_per_s());
    CHECK(!speed.ms_per_step());
    speed.add(1000, 100);
    CHECK(*speed.tokens_per_s() == doctest::Approx(10000));
    CHECK(*speed.ms_per_step() == doctest::Approx(100));
    // Then an average: 95 parts of the past, 5 of the present, each corrected for the short past.
    speed.add(1000, 200);
    CHECK(*speed.ms_per_step() == doctest::Approx((0.95 * 100 + 200) / 1.95));
    for (int i = 0; i < 500; i++) speed.add(1000, 50);
    CHECK(*speed.ms_per_step() == doctest::Approx(50).epsilon(1e-6));
    CHECK(*speed.tokens_per_s() == doctest::Approx(20000).epsilon(1e-6));
}

TEST_CASE("progress: steps as they are written") {
    std::FILE* file = std::tmpfile();
    REQUIRE(file != nullptr);
    ProgressSetup setup;
    setup.last_step = 10;
    Progress progress(file, setup);
    StepRecord record;
    record.loss = 2;
    for (int step = 1; step <= 4; step++) {
        record.step = step;
        record.ms = step == 1 ? 5000 : 1000;
        record.tokens_per_s = 1e6 / record.ms;
        record.mfu = record.tokens_per_s / 1e5;
        record.consecutive_skips = step == 3 ? 1 : 0;
        progress.step(record, std::nullopt);
    }
    progress.validation({4, {{"", 2.5f}}});
    progress.validation({4, {}});  // nothing to say

    std::rewind(file);
    std::string lines[6];
    char buffer[512];
    int count = 0;
    while (count < 6 && std::fgets(buffer, sizeof buffer, file) != nullptr) lines[count++] = buffer;
    std::fclose(file);
    REQUIRE(count == 5);
    CHECK(lines[0] == "step     1/10 | loss 2.0000 | norm 0.0000 | lr 0.00e+00 | 5000.0 ms\n");
    // 8 steps of 1 s are left.
    CHECK(contains(lines[1], "| 1,000 tok/s | MFU 1.0% | ETA 0:08\n"));
    CHECK(contains(lines[2], "skipped"));
    CHECK(!contains(lines[3], "skipped"));  // step 4 was applied
    CHECK(lines[4] == "val      4 | val_loss 2.5000\n");
}

TEST_CASE("progress: a run has at most 200 lines") {
    for (const auto& [steps, between] : std::map<int64_t, int64_t>{
             {-1, 1}, {1, 1}, {200, 1}, {201, 2}, {400, 2}, {401, 5}, {1001, 10}, {19560, 100}, {1000000, 5000}})
        CHECK(steps_between_lines(steps) == between);
}

TEST_CASE("progress: --log-every leaves out steps, but none that is unusual") {
    std::FILE* file = std::tmpfile();
    REQUIRE(file != nullptr);
    ProgressSetup setup;
    setup.last_step = 23;
    setup.log_every = 10;
    Progress progress(file, setup);
    for (int step = 1; step <= 23; step++) {
        StepRecord record;
        record.step = step;
        record.loss = step == 4 ? NAN : 2.0f;
        record.consecutive_skips = step == 6;
        if (step == 8) record.spike.loss = 1.0f;
        progress.step(record, std::nullopt);
    }
    std::rewind(file);
    std::string steps;
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, file) != nullptr)
        if (int step = 0; std::sscanf(buffer, "step %d/", &step) == 1) steps += std::to_string(step) + " ";
    std::fclose(file);
    CHECK(steps == "1 4 6 8 10 20 23 ");
}

TEST_CASE("progress: a first loss that fresh weights should not have is noted") {
    StepRecord record;
    record.step = 1;
    record.fresh = FreshLoss{10.8249, 10.9785};
    for (const float loss : {10.48f, 10.98f, 11.47f}) {
        record.loss = loss;
        CHECK(format_fresh_loss(record) == "");
    }
    for (const float loss : {10.47f, 11.49f, 0.0f, NAN, INFINITY}) {
        record.loss = loss;
        CHECK(format_fresh_loss(record) != "");
    }
    record.loss = 12.5f;
    CHECK(format_fresh_loss(record) ==
          "note: step 1: the loss of freshly initialised weights is 12.50 instead of about 10.98 (ln(V) = 10.82): the "
          "model's first pass went wrong, or the data is not what it seems");
}

TEST_CASE("progress: a spike has a line of its own") {
    StepRecord record;
    record.step = 812;
    record.loss = 9.12f;
    record.norm = 3.5f;
    record.spike.loss = 4.31f;
    record.consecutive_skips = 1;
    CHECK(format_spike(record) == "spike at step 812: loss 9.1200 > 4.3100 (mean + 6 sigma); step skipped");
    record.spike.norm = 1.25f;
    record.consecutive_skips = 0;
    CHECK(format_spike(record) ==
          "spike at step 812: loss 9.1200 > 4.3100 and gradient norm 3.5000 > 1.2500 (mean + 6 sigma); step kept "
          "(--skip-spikes would skip it)");
    record.spike.loss.reset();
    record.consecutive_skips = 1;
    CHECK(format_spike(record) == "spike at step 812: gradient norm 3.5000 > 1.2500 (mean + 6 sigma); step skipped");
}
