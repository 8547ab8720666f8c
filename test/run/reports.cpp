// Text at the start and the end of a run, the summary of --bench, and the exit code.
#include "llmc/run/reports.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "llmc/log/card_meter.h"
#include "llmc/log/metrics.h"
#include "llmc/log/progress.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

Options options() {
    Options o;
    o.seq = 64;
    o.schedule.steps = 300;
    o.out = "runs/a b";
    o.program = "./train_gpt";
    resolve(o, {});
    return o;
}

RunEnd finished() {
    RunEnd end;
    end.step = 300;
    end.resumable = true;
    end.seconds = 3723;
    end.results = {{{300, 3.25}}, {{300, 3.5}}, {{250, 3.4}}};
    return end;
}

std::string start(const Options& o, const DeviceInfo& device, const RunOutlook& outlook) {
    Ranks ranks(o, LaunchInfo());
    ranks.device = device;
    return describe_start(o, ranks, outlook);
}

// The warm-up steps, then steps of `ms`.
std::vector<StepRecord> steps_of(const std::vector<double>& ms) {
    std::vector<StepRecord> steps;
    for (int64_t i = 0; i < kBenchWarmup + static_cast<int64_t>(ms.size()); i++) {
        StepRecord record;
        record.step = i + 1;
        record.ms = i < kBenchWarmup ? 5000 : ms[i - kBenchWarmup];
        record.tokens_per_s = 1e6 / record.ms;
        steps.push_back(record);
    }
    return steps;
}

}  // namespace

TEST_CASE("reports: the loss expected of fresh weights, and how far a step's may be from it by chance") {
    const FreshLoss usual = fresh_loss(find_model("d12"), 1 << 19);
    CHECK(usual.ln_vocab == doctest::Approx(std::log(50257.0)));
    CHECK(usual.expected == doctest::Approx(std::log(50257.0) + 0.5 * 768 * 4e-4));
    CHECK(usual.margin == doctest::Approx(std::sqrt(768 * 4e-4)));
    // Wide channels make a target's logit vary by 1: one layer and 32 letters gave these losses with three seeds.
    ModelConfig wide = find_model("qwen3-4b");
    wide.vocab = 257;
    const FreshLoss letters = fresh_loss(wide, 32);
    for (const double loss : {6.6889, 6.0762, 5.7814}) CHECK(std::abs(loss - letters.expected) < letters.margin);
    CHECK(letters.margin < 1.1);
    CHECK(fresh_loss(wide, 4).margin == doctest::Approx(2 * letters.margin));
    CHECK(fresh_loss(find_model("nano-d12"), 1 << 19).margin == 0.5);  // a small head
}

TEST_CASE("summary: the start says how large and how long the run is") {
    Options o = options();
    DeviceInfo cpu, gpu;
    cpu.is_host = true;
    cpu.multiprocessors = 2;
    cpu.name = "the host";
    const std::string text = start(o, cpu, {.train_tokens = 38400});
    CHECK(contains(text, std::string("d12: 12 layers of 768 channels, 124 M parameters, ") + word_of(o.precision) +
                             ", on the host\n"));
    CHECK(contains(text,
                   "300 steps of 256 tokens in 1 micro-step each: 76,800 tokens, 2.0 passes over the 38,400 tokens"));
    CHECK(!contains(text, "nothing will be saved"));
    CHECK(!contains(text, "predicted"));
    Options single = options();
    single.schedule.steps = 1;
    CHECK(contains(start(single, cpu, {}), "1 step of 256 tokens in 1 micro-step: 256 tokens"));
    o.out.clear();
    CHECK(contains(start(o, cpu, {}), "no --out, so nothing will be saved"));
    o.bench = true;
    CHECK(!contains(start(o, cpu, {}), "nothing will be saved"));

    CHECK(!contains(start(o, cpu, {.seconds_per_step = 5}), "predicted"));
    CHECK(
        contains(start(o, cpu, {.seconds_per_step = 90}), "124 M parameters on 2 CPU threads: predicted 1.5 minutes"));
    CHECK(contains(start(o, gpu, {.first_step = 201, .seconds_per_step = 0.5}),
                   "predicted: 500.0 ms per step, 0:50 for 100 steps"));
}

TEST_CASE("summary: a run that is resumed at its end or past it has nothing to do") {
    Options o = options();
    const auto end = [&](int64_t first) { return describe_end(o, {.first_step = first, .step = first - 1}); };
    CHECK(contains(end(301), "all 300 steps are done; raise -x to continue\n"));
    CHECK(contains(end(411), "nothing to do: step 410 is past --max-steps 300\n"));
    CHECK(!contains(start(o, DeviceInfo(), {.first_step = 411, .seconds_per_step = 0.5}), "predicted"));
    CHECK(!contains(end(300), "are done"));  // stopped before its only step
    o.stop_after = 100;
    CHECK(contains(end(111), "nothing to do: step 110 is past --stop-after 100\n"));
}

TEST_CASE("summary: a run that a decay or --early-stop ended says how it can be continued") {
    Options o = options();
    RunEnd end{.first_step = 201, .step = 200, .decayed = true};
    CHECK(contains(describe_end(o, end),
                   "nothing to do: step 200 was the last one of the decay that was begun by hand; to continue, add "
                   "--decay-from N"));
    end.stop = StopReason::signal;
    CHECK(!contains(describe_end(o, end), "nothing to do"));
    o.early_stop = 3;
    CHECK(contains(describe_end(o, {.first_step = 201, .step = 200}),
                   "nothing to do: --early-stop 3 ended the run after step 200; to continue, add --early-stop 0\n"));
}

TEST_CASE("summary: passes over the data end where the data is read again") {
    Options o;
    o.seq = 50;
    o.batches = {{}, 100};
    std::set<int64_t> ends;
    const SampleOrder order({5}, {{0, {1}}}, 1), two({4, 3}, {{0, {1, 1}}}, 1);
    for (int64_t step = 1; step <= 10; step++)
        if (!describe_pass_end(o, order, {"a"}, step, step).empty()) ends.insert(step);
    CHECK(ends == std::set<int64_t>{3, 5, 8, 10});
    CHECK(describe_pass_end(o, order, {"a"}, 4, 5) ==
          "step 4: pass 2 over the training data is complete");                         // --skip-data 1
    CHECK(describe_pass_end(o, SampleOrder({2}, {{0, {1}}}, 1), {"a"}, 1, 1).empty());  // each step is a pass
    CHECK(describe_pass_end(o, two, {"a", "b"}, 3, 3) == "step 3: pass 1 over b is complete");
    CHECK(describe_pass_end(o, two, {"a", "b"}, 12, 12) ==
          "step 12: pass 3 over a is complete\nstep 12: pass 4 over b is complete");
    CHECK(describe_pass_end(o, two, {"a", "b"}, 2, 2).empty());
    o.bench = true;  // its tokens are random
    CHECK(describe_pass_end(o, order, {"a"}, 4, 5).empty());
}

TEST_CASE("summary: the end says what came out, where it is and what to try next") {
    const Options o = options();
    const std::string text = describe_end(o, finished());
    CHECK(contains(text, "300 steps (76,800 tokens) in 1:02:03, last loss 3.2500\n"));
    CHECK(contains(text, "validation loss 3.5000 after step 300, best 3.4000 after step 250\n"));
    CHECK(contains(text, "weights written to runs/a b/model.safetensors\n"));
    CHECK(contains(text, "next: ./train_gpt sample --from 'runs/a b'\n"));
    RunEnd stopped = finished();
    stopped.first_step = 201;
    CHECK(contains(describe_end(o, stopped), ", best since the resume 3.4000 after step 250\n"));
    RunResults seen;
    for (const SeenLoss& val : {SeenLoss{0, NAN}, {10, 5.0}, {20, NAN}, {30, 5.5}}) seen.see_validation(val);
    CHECK(seen.val->step == 30);
    CHECK(seen.best_val->step == 10);
    stopped.stop = StopReason::out_of_time;
    CHECK(contains(describe_end(o, stopped), "continue with: ./train_gpt -o 'runs/a b' --resume latest\n"));
    stopped.first_step = 1, stopped.step = 0;  // there is no checkpoint
    CHECK(contains(describe_end(o, stopped), "continue with: ./train_gpt -o 'runs/a b' --resume auto\n"));
    CHECK(!contains(describe_end(o, stopped), "weights"));
}

TEST_CASE("summary: 75 is only for a run that can be continued") {
    Options o = options();
    RunEnd end = finished();
    CHECK(exit_code_of(end) == ExitCode::ok);
    CHECK(problem_of(o, end).empty());
    end.stop = StopReason::out_of_time;
    CHECK(exit_code_of(end) == ExitCode::stopped);
    CHECK(problem_of(o, end).empty());
    end.resumable = false;
    CHECK(exit_code_of(end) == ExitCode::failure);
    CHECK(contains(problem_of(o, end), "-n and --checkpoint-minutes are 0"));
    o.out.clear();
    CHECK(problem_of(o, end) ==
          "stopped after step 300 (--max-minutes reached); nothing was saved because the run has no --out");
}

TEST_CASE("summary: a run whose numbers went bad at its end has failed") {
    const Options o = options();
    RunEnd end = finished();
    end.results.train->loss = NAN;
    CHECK(exit_code_of(end) == ExitCode::ok);  // a skipped step: the weights were validated after it
    end.results.val->step = 250;
    CHECK(exit_code_of(end) == ExitCode::bad_numbers);
    CHECK(contains(problem_of(o, end), "the last training loss is nan"));
    CHECK(!contains(describe_end(o, end), "next:"));
    end = finished();
    end.results.val->loss = INFINITY;
    CHECK(exit_code_of(end) == ExitCode::bad_numbers);
    CHECK(contains(problem_of(o, end), "the last validation loss is inf"));
}

TEST_CASE("bench: the median of the steps after the warm-up") {
    ProgressSetup setup;
    CHECK(format_bench(steps_of({120, 100, 90, 3000, 80}), setup, size_t{3} << 30) ==
          "bench: 100.0 ms per step (median of 5 after 5 of warm-up; 80.0 to 3000.0), 10,000 tok/s, mem 3.0 GiB");
    setup.peak_tflops = 20;
    setup.ranks = 2;
    std::vector<StepRecord> steps = steps_of({100});
    steps.back().joules_per_token = 0.0125;
    steps.back().mfu = 0.25;
    CHECK(format_bench(steps, setup, size_t{3} << 30) ==
          "bench: 100.0 ms per step (median of 1 after 5 of warm-up; 100.0 to 100.0), 10,000 tok/s, 5,000 of each of 2 "
          "ranks, MFU 25.0% of 20 TFLOP/s, 0.0125 J per token, mem 3.0 GiB");
    CHECK(format_bench(steps_of({}), setup, 0) == "bench: it ended before the warm-up did");
}
