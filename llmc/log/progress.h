// The terminal during a run: one line per step with loss, speed and time left. The formatting functions are pure;
// Progress keeps the running averages and prints.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace llmc {

struct StepRecord;
struct ValRecord;

// The numbers of a step's line that its record lacks.
struct Pace {
    int64_t last_step = -1;              // -1 if unknown
    std::optional<double> tokens_per_s;  // smoothed
    std::optional<size_t> memory;        // bytes in use
    std::optional<double> seconds_left;
};

std::string format_progress(const StepRecord& record, const Pace& pace);
// "spike at step 812: loss 9.1200 > 4.3100 ..."
std::string format_spike(const StepRecord& record);
// A warning if the loss of fresh weights is further from the expected loss than its margin, else "".
std::string format_fresh_loss(const StepRecord& record);
std::string format_validation(const ValRecord& record);

// Model FLOPs utilization: useful work (ModelConfig::flops_per_token) as a fraction of the peak of `ranks` cards.
double model_flops_utilization(double flops_per_token, double tokens_per_s, double peak_tflops, int ranks);

// True on a person's terminal, which may show status lines. Under a launcher (mpirun, srun) it is false, because the
// output may end in a log. TERM=dumb and a non-empty NO_COLOR ask for plain text. `variable` is getenv.
bool is_watched(bool is_terminal, const std::function<const char*(const char*)>& variable);

// Steps from one line of a run of `steps` steps to the next: 1, 2 or 5 times a power of ten, for at most 200 lines.
int64_t steps_between_lines(int64_t steps);

// Tokens per second: an exponential moving average of time and tokens, corrected for its start at zero. The first step
// is left out, because it warms up caches, plans and clocks.
class Throughput {
public:
    void add(double tokens, double ms);
    std::optional<double> tokens_per_s() const;
    std::optional<double> ms_per_step() const;

private:
    bool first_ = true;
    double weight_ = 0, tokens_ = 0, ms_ = 0;
};

struct ProgressSetup {
    int64_t last_step = -1;             // min(max_steps, stop_after); -1 if unknown
    std::optional<double> peak_tflops;  // peak of one card in the run's precision
    int ranks = 1;
    int64_t log_every = 1;  // steps; 0 = steps_between_lines()
};

class Progress {
public:
    // Prints to `out`; nothing if it is nullptr.
    Progress(std::FILE* out, const ProgressSetup& setup);
    void step(const StepRecord& record, std::optional<size_t> memory);
    void validation(const ValRecord& record);
    void print(const std::string& line);
    void end_at(int64_t step) { setup_.last_step = step; }

private:
    std::FILE* out_;
    ProgressSetup setup_;
    double seconds_left(int64_t step, double ms_per_step) const;

    Throughput throughput_;
    std::optional<double> first_report_;  // monotonic_seconds()
    int64_t steps_since_ = 0;             // steps since the first report
    double ms_since_ = 0;                 // their time
};

}  // namespace llmc
