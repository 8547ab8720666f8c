// Text for a person at the start and the end of a run: its size and length, what came out of it, where that is, and
// which commands to try next. And the exit code that says the same to a script.
#pragma once
#include <optional>
#include <string>

#include "llmc/flags/options.h"
#include "llmc/run/ranks.h"
#include "llmc/run/step_reports.h"

namespace llmc {

// Facts that are known before the first step, in addition to the options.
struct RunOutlook {
    int64_t train_tokens = 0;                     // tokens of the training set
    int64_t first_step = 1;                       // above 1: the run continues
    std::optional<double> seconds_per_step = {};  // predicted
};

// "d12 on NVIDIA H100, fp8: 124,475,904 parameters", the length of the run in steps, tokens and passes over the data,
// the predicted time, and the notes. Several lines.
std::string describe_start(const Options& options, const Ranks& ranks, const RunOutlook& outlook);

// At 50 GFLOP/s for each thread, which a CPU's matmuls reach at best.
double predicted_cpu_seconds(const Options& options, int threads);

// How a run ended.
struct RunEnd {
    int64_t first_step = 1, step = 0;  // the steps that this process made; none if `step` is below `first_step`
    StopReason stop = StopReason::none;
    bool resumable = false;  // there are checkpoints to continue from
    double seconds = 0;      // duration of this process
    RunResults results = {};
};

// Several lines for the terminal.
std::string describe_end(const Options& options, const RunEnd& end);
// The problem of a run that made all its steps, or was stopped and cannot be continued; "" if there is none.
std::string problem_of(const Options& options, const RunEnd& end);
ExitCode exit_code_of(const RunEnd& end);
// The former on stdout, the latter on stderr.
void print_end(const Options& options, const RunEnd& end);

}  // namespace llmc
