// Decides when a run saves checkpoints, and reports the results. CheckpointSaver does the work, next to training.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/base/clock.h"
#include "llmc/checkpoint/saver.h"
#include "llmc/comm/watchdog.h"
#include "llmc/flags/options.h"
#include "llmc/log/run_directory.h"
#include "llmc/run/children.h"
#include "llmc/run/resume.h"
#include "llmc/train/staging.h"
#include "llmc/train/trainer.h"

namespace llmc {

template <class Real>
class Checkpoints {
public:
    // `position` is where the run is; Run updates it. Throws Error(no_resources) if there is no room for a checkpoint.
    Checkpoints(const Options& options, const Inputs& inputs, Trainer<Real>& trainer, RunDirectory& directory,
                const RunPosition& position);

    bool enabled() const { return saver_.has_value(); }
    // This rank's state, which it tells the others at the end of a step.
    bool is_writing() const { return saver_ && saver_->is_working(); }
    int64_t last_saved() const { return last_saved_; }  // step of the last checkpoint in this directory; -1: none
    bool is_time() const;  // --checkpoint-minutes have passed; always false on ranks other than 0

    // Collectives: every rank calls them with the values that the ranks agreed on. Call advance() after every step. If
    // is_due(), report everything up to this step, then call save().
    void advance(bool some_rank_is_writing);
    bool is_due(bool time_to_save) const;
    void save();
    // Saves the last checkpoint of the run, unless this step has one, and waits until it is written. Returns the reason
    // if that failed, the same on every rank.
    Failure finish();
    // Waits for the commands of --after-checkpoint, and calls `alive` meanwhile.
    void wait_for_commands(const std::function<void()>& alive) { command_.wait(alive); }

private:
    void begin(bool last);
    void report(const SaveOutcome& outcome, bool last);
    Manifest manifest();

    const Options& options_;
    const Inputs& inputs_;
    Trainer<Real>& trainer_;
    RunDirectory& directory_;
    const RunPosition& position_;
    std::optional<Staging> staging_;
    std::optional<CheckpointSaver> saver_;
    CheckpointCommand command_;
    double last_begin_ = monotonic_seconds();
    int64_t last_saved_;  // step of the last checkpoint in this directory; -1 if there is none
};

}  // namespace llmc
