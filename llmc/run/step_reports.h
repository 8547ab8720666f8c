// Reports steps and validations to the terminal and to metrics.jsonl, and defines the reasons why a run stops early.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/flags/options.h"
#include "llmc/fp8/registry.h"
#include "llmc/log/energy.h"
#include "llmc/log/metrics.h"
#include "llmc/log/progress.h"
#include "llmc/train/step_record.h"

namespace llmc {

// Why a run ends before its last step.
enum class StopReason : int64_t { none, out_of_time, signal };
// Time limit on the steady clock, or nothing.
using Deadline = std::optional<std::chrono::steady_clock::time_point>;
Deadline deadline_after(double minutes);  // 0 means no limit
// Why this rank wants to stop now.
StopReason stop_reason(const Deadline& deadline);
void print_stop(int64_t step, StopReason reason);  // prints nothing for `none`
std::string stop_name(StopReason reason);          // "SIGTERM", "--max-minutes reached"

FreshLoss fresh_loss(const ModelConfig& model);  // expected loss of a freshly initialised model

struct SeenLoss {
    int64_t step = 0;
    double loss = 0;
};
// The losses that a run ends with. Validation losses are those of the first set.
struct RunResults {
    std::optional<SeenLoss> train, val, best_val;
};

// Length of a pass over the training data.
struct PassOverData {
    int64_t tokens = 0;       // tokens of a pass; 0 if unknown
    int64_t steps_ahead = 0;  // data steps ahead of the counted ones, after --skip-data
};

// "step 120: pass 1 over the training data is complete"; "" if no pass ends in the step that takes the data of
// `data_step` (from 1), or if a step takes a whole pass.
std::string describe_pass_end(const TokenSchedule& batches, int64_t tokens_per_pass, int64_t step, int64_t data_step);

class StepReports {
public:
    // `fp8` names tensors; nullptr without FP8.
    StepReports(const Options& options, const ProgressSetup& setup, const PassOverData& pass, const Fp8Registry* fp8,
                const Comm& comm, RunDirectory& directory);

    // Adds to the record of a step what the run knows of it: its batch, the tokens so far, energy.
    void add_facts(StepRecord& record, uint64_t batch_hash, const Energy& energy) const;
    // Reports a step. Throws Error(bad_numbers) if too many steps in a row were skipped, or if bits differ.
    void report(StepRecord record);
    void report(const ValRecord& record);
    // Prints the summary of --bench.
    void print_bench();
    const RunResults& results() const { return results_; }

private:
    void check_bits(const StepRecord& record);

    const Options& options_;
    const Fp8Registry* const fp8_;
    RunDirectory& directory_;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere_;
    const ProgressSetup setup_;
    const PassOverData pass_;
    RunResults results_;
    Progress progress_;
    std::vector<StepRecord> benched_;  // with --bench, all steps
};

}  // namespace llmc
