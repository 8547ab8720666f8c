// The life of a training run around its steps: where it is, its batches, its records, validations, checkpoints and its
// end. The training loop in train_gpt.cu drives a Run.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/data/micro_batch.h"
#include "llmc/log/card_meter.h"
#include "llmc/log/profile.h"
#include "llmc/log/provenance.h"
#include "llmc/run/checkpoints.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/reports.h"
#include "llmc/run/start.h"
#include "llmc/run/stop.h"

namespace llmc {

class TrainLoader;
struct Fp8Fallback;
struct StepKind;

// Facts about this rank's card that the run records.
struct CardFacts {
    JsonValue tuning;                   // what was measured before the first step; null on a CPU
    std::optional<double> peak_tflops;  // denominator of MFU, if the card is known
};

// Every rank calls the functions of Run in the same order, and all ranks stop after the same step. Within a step
// nothing waits for the device: step k is reported while step k + 1 runs.
template <class Real>
class Run {
public:
    // `position` is from set_weights(). All arguments but `card` and `position` must outlive the run. Throws
    // Error(no_resources) if there is no room for a checkpoint.
    Run(const Options& options, const Inputs& inputs, const CardFacts& card, Ranks& ranks, RunDirectory& directory,
        const RunPosition& position, Trainer<Real>& trainer);
    ~Run();

    // Evaluates the initial weights; after a resume, evaluates if a stop prevented that.
    void begin();
    // Steps are left, and nothing has asked for a stop.
    bool goes_on() const { return position_.step < last_step_ && stop_ == StopReason::none; }

    StepKind begin_step();
    int micro_steps() const { return micro_steps_; }  // micro-steps in this step
    MicroBatch load_batch();
    // After Trainer::finish_step(), which returns the layers that leave FP8. The ranks agree whether to stop.
    void end_step(const std::vector<Fp8Fallback>& fallbacks);

    // Validation losses, a sample, records of FP8 tensors: those of them that are due after this step.
    bool evaluation_is_due() const { return stop_ == StopReason::none && due_now().any(); }
    void evaluate();
    bool checkpoint_is_due() const { return stop_ == StopReason::none && checkpoints_.is_due(agreed_.time_to_save); }
    void save();

    // Reports the last steps, then writes the last checkpoint and the final weights.
    ExitCode finish();

private:
    // Values that the ranks exchange at the end of a step. A stop on one rank stops all ranks after the same step.
    struct Agreement {
        StopReason stop = StopReason::none;  // the most urgent reason of all ranks
        uint64_t batch_hash = 0;             // sum over the ranks
        uint8_t writing = 0;                 // 1: some rank is still writing a checkpoint
        uint8_t time_to_save = 0;            // 1: --checkpoint-minutes have passed
        int64_t decay = DecayFile::kNone;    // steps for which a decay shall begin now
        CardReading cards{};                 // over the ranks, since the last agreement
        RankTime time = {};                  // of the step before; not agreed
    };
    int micro_steps_of(int64_t step) const {
        return static_cast<int>(options_.batches.tokens_of(step) / options_.micro_step_tokens(comm_.world()));
    }
    StopReason reason_to_stop(const Deadline& deadline);
    Agreement proposal(const std::optional<StepRecord>& before);
    Agreement agree(Agreement mine);

    // The parts of evaluate() that are due between two steps. Evaluation does the first two.
    struct Due {
        bool validation, sample, fp8_records;
        bool any() const { return validation || sample || fp8_records; }
    };
    Due due_now() const;
    bool validate();
    void print_sample();

    std::optional<StepRecord> wait_for_result(int leave) {
        const ProfileRange range("wait for results");
        return trainer_.take_result(leave);
    }
    // Reports the steps whose results have not been reported, except for the last `leave`.
    void report_steps(int leave) {
        while (const std::optional<StepRecord> record = wait_for_result(leave)) reports_.report(*record);
    }
    void check_first_step();
    // All layers leave FP8 with this step (--fp8-until).
    bool ends_fp8() const { return trainer_.fp8() && position_.step == trainer_.fp8()->config().until; }
    void report_layers_that_left_fp8(const std::vector<Fp8Fallback>& fallbacks);
    void end_profiled_step();
    void begin_decay(int64_t steps);
    // Deletes the file once no kill can lose the decay.
    void forget_decay_file() {
        const bool is_safe = !checkpoints_.enabled() || checkpoints_.last_saved() >= position_.decay.from;
        if (position_.decay.has_begun() && is_safe) decay_file_.forget();
    }

    const Options& options_;
    Ranks& ranks_;
    const Comm& comm_;
    RunDirectory& directory_;
    Trainer<Real>& trainer_;

    RunPosition position_;
    const int64_t first_step_;  // first step of this process
    int64_t last_step_;         // its last step, unless something stops it before
    const Deadline deadline_;   // --max-minutes
    StopReason stop_ = StopReason::none;
    std::string unreadable_;  // why this rank cannot read its data; "" if it can

    Checkpoints<Real> checkpoints_;
    const StopWaitsFor stop_waits_for_;  // during a step
    const std::unique_ptr<TrainLoader> loader_;
    Evaluation<Real> evaluation_;
    Reports reports_;
    Profiler profiler_;
    CardMeter meter_;
    DecayFile decay_file_;

    // State of the current step.
    int micro_steps_ = 0, micro_step_ = 0;
    BatchFingerprint fingerprint_;
    Agreement agreed_;
    double data_seconds_ = 0;           // waiting for batches since the last step
    std::vector<RankTime> rank_times_;  // the times that ranks last exchanged
    bool interrupted_ = true;           // other work ran since the previous step
};

}  // namespace llmc
