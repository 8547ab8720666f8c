// When a run saves checkpoints, and what it reports about them.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "llmc/run/checkpoint_command.h"
#include "llmc/run/start.h"

namespace llmc {

class CheckpointSaver;
class Staging;
struct Failure;
struct Manifest;
struct SaveOutcome;

// Decides when a run saves checkpoints, and reports the results. CheckpointSaver does the work, next to training.
template <class Real>
class Checkpoints {
public:
    // `position` is where the run is; Run updates it. Throws Error(no_resources) if there is no room for a checkpoint.
    // `alive` is called while the run does nothing but write a checkpoint, from any thread, as long as there is
    // progress.
    Checkpoints(const Options& options, const Inputs& inputs, Trainer<Real>& trainer, RunDirectory& directory,
                const RunPosition& position, const std::function<void()>& alive);
    ~Checkpoints();

    bool enabled() const { return saver_ != nullptr; }
    // This rank's state, which it tells the others at the end of a step.
    bool is_writing() const;
    int64_t last_saved() const { return last_saved_; }  // step of the last checkpoint in this directory; -1: none
    bool is_time() const;  // --checkpoint-minutes have passed; always false on ranks other than 0

    // Collectives: every rank calls them with the values that the ranks agreed on. Call advance() after every step. If
    // is_due(), report everything up to this step, then call save().
    void advance(bool some_rank_is_writing);
    bool is_due(bool time_to_save) const {
        if (!saver_) return false;
        const int64_t every = options_.checkpoint_every;
        return time_to_save || (every > 0 && position_.step % every == 0);
    }
    void save();
    // Saves the last checkpoint of the run, unless this step has one, and waits until it is written. Returns the reason
    // if that failed, the same on every rank.
    Failure finish();
    // Waits for the commands of --after-checkpoint. Only rank 0 has some. The others wait with it, so that no watchdog
    // misses a sign of life, and all ranks notice if one dies.
    void wait_for_commands();

private:
    void begin(bool last);
    void wait(bool last);
    void report(const SaveOutcome& outcome, bool last);
    Manifest manifest();

    const Options& options_;
    const Inputs& inputs_;
    Trainer<Real>& trainer_;
    RunDirectory& directory_;
    const RunPosition& position_;
    JsonValue facts_;  // Inputs::facts() when the run began, so that the last save works if the data cannot be read
    std::unique_ptr<Staging> staging_;
    std::unique_ptr<CheckpointSaver> saver_;  // nullptr if the run saves no checkpoints
    CheckpointCommand command_;
    const std::function<void()> alive_;
    std::atomic<bool> waits_{false};  // the run waits for the save
    double last_begin_;
    int64_t last_saved_;  // step of the last checkpoint in this directory; -1 if there is none
};

}  // namespace llmc
