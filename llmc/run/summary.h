// Text for a person at the start and the end of a run: its size and length, its results, where they are, and the
// commands to try next. Also the exit code, which says the same to a script.
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
    int64_t first_step = 1;                       // above 1 if the run resumes
    std::optional<double> seconds_per_step = {};  // predicted
};

// "d12 on NVIDIA H100, fp8: 124,475,904 parameters", the length of the run in steps, tokens and passes over the data,
// the predicted time, and the notes. Several lines.
std::string describe_start(const Options& options, const Ranks& ranks, const RunOutlook& outlook);

// Seconds per step at 50 GFLOP/s per thread, the best that matrix products on a CPU reach.
double predicted_cpu_seconds(const Options& options, int threads);

// How a run ended.
struct RunEnd {
    int64_t first_step = 1, step = 0;  // first and last step of this process; none if `step` < `first_step`
    StopReason stop = StopReason::none;
    bool resumable = false;  // a checkpoint exists to continue from
    double seconds = 0;      // duration of this process
    RunResults results = {};
};

// Several lines for the terminal.
std::string describe_end(const Options& options, const RunEnd& end);
// The problem of a run that made all its steps, or was stopped and cannot be continued; "" if there is none.
std::string problem_of(const Options& options, const RunEnd& end);
ExitCode exit_code_of(const RunEnd& end);
// Prints describe_end() on stdout and problem_of() on stderr.
void print_end(const Options& options, const RunEnd& end);

}  // namespace llmc
