// When a run saves checkpoints, and what it says about them. The work is done by CheckpointSaver, beside training.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/checkpoint/saver.h"
#include "llmc/comm/watchdog.h"
#include "llmc/data/shards.h"
#include "llmc/run/metrics.h"
#include "llmc/run/options.h"
#include "llmc/run/resume.h"
#include "llmc/run/step_reports.h"
#include "llmc/train/staging.h"
#include "llmc/train/trainer.h"

namespace llmc {

template <class Real>
class Checkpoints {
public:
    // `position`: where the run is; kept up to date by whoever steps. Throws Error(no_resources) where there is no room
    // for one checkpoint.
    Checkpoints(const Options& options, const ShardSet& train, Trainer<Real>& trainer, RunDirectory& directory,
                const RunPosition& position);

    bool enabled() const { return saver_.has_value(); }
    // What this rank has to say at the end of a step.
    bool is_writing() const { return saver_ && saver_->is_working(); }
    bool is_time() const;  // by the clock, of which rank 0's counts

    // Collectives, with what all ranks said. advance(): after every step. is_due(): whether save() should be called,
    // with everything reported that the step has to report.
    void advance(const StepAgreement& agreed);
    bool is_due(const StepAgreement& agreed) const;
    void save();
    // The last one of the run, unless there is one of this step; waits for it. Returns why it could not be written, the
    // same on every rank.
    Failure finish();

private:
    using Clock = std::chrono::steady_clock;
    void begin(bool last);
    void report(const SaveOutcome& outcome, bool last);
    Manifest manifest();

    const Options& options_;
    const ShardSet& train_;
    Trainer<Real>& trainer_;
    RunDirectory& directory_;
    const RunPosition& position_;
    std::optional<Staging> staging_;
    std::optional<CheckpointSaver> saver_;
    Clock::time_point last_begin_ = Clock::now();
    int64_t last_saved_;  // step; -1: none in this directory
};

}  // namespace llmc
