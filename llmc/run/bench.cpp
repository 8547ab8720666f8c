// Reduces a run to a few timed steps, and summarises them.
#include "llmc/run/bench.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {

void only_bench(Options& o) {
    if (o.stop_after == 0) o.stop_after = kBenchSteps;
    if (o.stop_after <= kBenchWarmup)
        throw Error(ExitCode::bad_flags,
                    strprintf("--bench leaves out %lld steps of warm-up: use a --stop-after above that, or none",
                              static_cast<long long>(kBenchWarmup)));
    if (o.train.empty() && o.max_steps < 0 && o.depth == 0) o.max_steps = o.warmup + o.stop_after;
    o.val.clear();
    o.sample_every = o.checkpoint_every = o.early_stop = 0;
    o.checkpoint_minutes = 0;
    o.plateau = Options().plateau;
    o.rewind = o.skip_data = 0;
    if (o.train.empty()) o.epochs = 0;
    o.new_data = false;
    o.track = Options().track;
    for (std::string Options::*path :
         {&Options::out, &Options::hellaswag, &Options::resume, &Options::checkpoint_local})
        (o.*path).clear();
}

ShardSet bench_tokens(const Options& o) {
    constexpr int64_t kMost = 1 << 24;  // a longer run reads them several times
    const int64_t needed = o.batches.tokens_until(o.stop_after);
    return ShardSet::random(o.model_config.vocab, std::max<int64_t>(std::min(needed, kMost), o.seq) + 1, o.seed);
}

std::string format_bench(const std::vector<StepRecord>& steps, const ProgressSetup& setup, size_t memory) {
    std::vector<StepRecord> timed;
    for (const StepRecord& step : steps)
        if (step.step > kBenchWarmup) timed.push_back(step);
    if (timed.empty()) return "bench: it ended before the warm-up did";
    std::sort(timed.begin(), timed.end(), [](const StepRecord& a, const StepRecord& b) { return a.ms < b.ms; });
    const StepRecord& median = timed[timed.size() / 2];
    std::string text =
        strprintf("bench: %.1f ms per step (median of %zu after %lld of warm-up; %.1f to %.1f), %s tok/s", median.ms,
                  timed.size(), static_cast<long long>(kBenchWarmup), timed.front().ms, timed.back().ms,
                  with_commas(std::llround(median.tokens_per_s)).c_str());
    if (setup.ranks > 1)
        text += strprintf(", %s of each of %d ranks",
                          with_commas(std::llround(median.tokens_per_s / setup.ranks)).c_str(), setup.ranks);
    if (setup.peak_tflops)
        text += strprintf(
            ", MFU %.1f%% of %.0f TFLOP/s",
            100 * model_flops_utilization(median.flops_per_token, median.tokens_per_s, *setup.peak_tflops, setup.ranks),
            *setup.peak_tflops);
    if (median.joules_per_token) text += strprintf(", %.3g J per token", *median.joules_per_token);
    return text + ", mem " + format_bytes(memory);
}

}  // namespace llmc
