// "Decay now": a file named `decay` in the run directory lets the learning rate of a wsd or inverse-sqrt schedule fall
// from the current step on, and ends the run with the decay.
//
//   echo 2000 > runs/long/decay     # over the next 2000 steps
//
// Rank 0 looks for the file at the end of a step, at most once a second, and the ranks agree on what it found
// (Run::agree()). A decay that begins after step k has the rates of --decay-from k. It is saved in checkpoints, the
// first of which is written at once. Then the file is deleted, so a run that is killed before that finds it again.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/log/run_directory.h"
#include "llmc/train/trainer.h"

namespace llmc {

// A decay that somebody began by hand. After step `from` the rate falls, and the run ends with step `until`.
struct Decay {
    int64_t from = -1, until = -1;  // -1: none began
    bool has_begun() const { return from >= 0; }
};

class DecayFile {
public:
    static constexpr int64_t kNone = -1;
    DecayFile(const TrainerConfig& config, const RunDirectory& directory);

    // The number of steps for which the file asks after `step`, or kNone. A file that asks for a decay that this run
    // cannot begin is deleted, and its problem printed.
    int64_t look(int64_t step);
    // Deletes the file, and looks no more. Call once a checkpoint holds the decay, or if none will.
    void forget();

private:
    // Why there can be no decay of `steps` steps after `step`; "" if there can.
    std::string problem_of(int64_t step, int64_t steps) const;

    const TrainerConfig& config_;
    std::string path_;      // "" if this process does not look
    double next_look_ = 0;  // monotonic_seconds()
};

}  // namespace llmc
