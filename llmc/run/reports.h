// A run's messages to people: text at its start, steps and validations as they happen, and text at its end. Also the
// exit code, which tells scripts the same.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/rank_time.h"
#include "llmc/log/progress.h"
#include "llmc/run/stop.h"
#include "llmc/train/step_results.h"

namespace llmc {

class Comm;
class Fp8Registry;
class RunDirectory;
class SampleOrder;
struct CardReading;
struct Inputs;
struct ModelConfig;
struct Options;
struct Ranks;
struct ValRecord;

// ---- the start ------------------------------------------------------------------------------------------------------

// Facts that are known before the first step, in addition to the options.
struct RunOutlook {
    int64_t train_tokens = 0;                     // tokens of the training set; 0 for several sources
    int64_t first_step = 1;                       // above 1 if the run resumes
    std::optional<double> seconds_per_step = {};  // predicted
    std::string sources = {};                     // Inputs::describe_sources()
};

// "d12: 12 layers of 768 channels, 124,475,904 parameters, fp8, on NVIDIA H100", the length of the run in steps, tokens
// and passes over the data, the predicted time, and the notes. Several lines.
std::string describe_start(const Options& options, const Ranks& ranks, const RunOutlook& outlook);

// ---- steps ----------------------------------------------------------------------------------------------------------

// The expected loss of a freshly initialised model's first step, over `tokens` tokens.
FreshLoss fresh_loss(const ModelConfig& model, int64_t tokens);

struct SeenLoss {
    int64_t step = 0;
    double loss = 0;
};
// The losses that a run ends with. Validation losses are those of the first set. The best one is finite.
struct RunResults {
    std::optional<SeenLoss> train, val, best_val;

    void see_validation(const SeenLoss& seen) {
        val = seen;
        if (std::isfinite(seen.loss) && (!best_val || seen.loss < best_val->loss)) best_val = seen;
    }
};

// "step 120: pass 1 over the training data is complete"; "" if no pass ends in the step that takes the data of
// `data_step` (from 1), or if a step takes a whole pass. For several sources, a line for each that ends a pass.
std::string describe_pass_end(const Options& options, const SampleOrder& order,
                              const std::vector<std::string>& patterns, int64_t step, int64_t data_step);

// Reports steps and validations to the terminal and to metrics.jsonl, and keeps the losses that the run ends with.
class Reports {
public:
    // A collective. `steps_ahead`: data steps ahead of the counted ones, after --skip-data. `fp8` names tensors;
    // nullptr without FP8.
    Reports(const Options& options, const ProgressSetup& setup, const Inputs& inputs, int64_t steps_ahead,
            const Fp8Registry* fp8, const Comm& comm, RunDirectory& directory);

    // Fills in the fields of a step's record that the run knows: its batch, the tokens so far, the cards.
    void add_facts(StepRecord& record, uint64_t batch_hash, const CardReading& cards) const;
    // Reports a step. Throws Error(bad_numbers) if too many steps in a row were skipped, or if bits differ.
    void report(StepRecord record);
    void report(const ValRecord& record);
    void end_at(int64_t step) { progress_.end_at(step); }  // the run will end with another step than planned
    // Prints the summary of --bench.
    void print_bench();
    const RunResults& results() const { return results_; }

private:
    void check_bits(const StepRecord& record);

    const Options& options_;
    const Fp8Registry* const fp8_;
    RunDirectory& directory_;
    const ProgressSetup setup_;
    const Inputs& inputs_;
    const int64_t steps_ahead_;
    RunResults results_;
    Progress progress_;
    const Comm& comm_;
    const std::vector<std::string> ranks_;  // descriptions
    SlowRankWatch slow_ranks_;
    std::vector<StepRecord> benched_;  // with --bench, all steps
};

// Summarises the steps after kBenchWarmup: median time with its range, then throughput, MFU and energy of the median
// step. `memory`: bytes in use on this rank's device.
std::string format_bench(const std::vector<StepRecord>& steps, const ProgressSetup& setup, size_t memory);

// ---- the end --------------------------------------------------------------------------------------------------------

// How a run ended.
struct RunEnd {
    int64_t first_step = 1, step = 0;  // first and last step of this process; none if `step` < `first_step`
    StopReason stop = StopReason::none;
    bool resumable = false;  // a checkpoint exists to continue from
    double seconds = 0;      // duration of this process
    RunResults results = {};
    bool decayed = false;  // `step` was the last one of a decay that somebody began by hand
};

// Several lines for the terminal.
std::string describe_end(const Options& options, const RunEnd& end);
// The problem of a run that made all its steps, or was stopped and cannot be continued; "" if there is none.
std::string problem_of(const Options& options, const RunEnd& end);
ExitCode exit_code_of(const RunEnd& end);
// Prints describe_end() on stdout and problem_of() on stderr.
void print_end(const Options& options, const RunEnd& end);

}  // namespace llmc
