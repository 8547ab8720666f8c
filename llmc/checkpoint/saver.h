// Saves a checkpoint while training goes on. Every rank writes its own file in a thread. The ranks agree in their main
// threads, between two steps, so no other thread ever communicates.
//
//   saver.begin(job);  // a collective; returns once the threads run
//   ... a step ...
//   if (saver.is_active() && !any_rank(saver.is_working()))
//       outcome = saver.advance();  // a collective; first all files are written, then the manifest
//
// Either all ranks' files are on the disk and the manifest names them, or the save has failed on every rank. Then its
// files are removed, and earlier checkpoints are unchanged.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/comm/agreement.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct SaveJob {
    Manifest manifest;                      // without its list of files
    std::vector<StateSlice> slices;         // the parts that this rank saves
    SliceBytes values;                      // the thread reads them until is_working() is false
    bool in_background = true;              // if false, begin() writes this rank's file itself
    std::function<void()> before_manifest;  // rank 0 calls it in the thread; may be empty
    std::vector<uint64_t> checksums;        // expected of the file; empty if unknown
    Failure failure;                        // an error of this rank before begin(), which makes the save fail
    std::vector<int64_t> read;              // steps of earlier checkpoints that must stay, because programs read them
};

struct SaveOutcome {
    int64_t step = 0;
    std::string path;
    std::string problem;  // "" if the checkpoint was saved
    ExitCode code = ExitCode::ok;
    std::string prune_problem;  // why an old checkpoint could not be removed, or ""
    uint64_t bytes = 0;
    double seconds = 0;
};

// Bytes of the values that all ranks save together, without their files' headers. A collective.
uint64_t checkpoint_bytes(const Comm& comm, const std::vector<StateSlice>& slices);

class CheckpointSaver {
public:
    // `in_use` is the step that the run was resumed from, or -1.
    CheckpointSaver(const Comm& comm, const std::string& directory, const CheckpointRetention& retention,
                    int64_t in_use, FileCalls& calls = system_calls());
    ~CheckpointSaver();
    CheckpointSaver(CheckpointSaver&&) = delete;

    // These are collectives. Only one save may be active. begin() returns an outcome only if it failed.
    std::optional<SaveOutcome> begin(SaveJob job);
    std::optional<SaveOutcome> advance();
    std::optional<SaveOutcome> wait();  // waits for the outcome; returns nothing if no save is active

    bool is_active() const { return phase_ != Phase::idle; }
    bool is_working() const { return working_; }  // true while this rank's thread runs

private:
    enum class Phase { idle, writing, committing };
    void join() {
        if (thread_.joinable()) thread_.join();
    }
    void check_room(uint64_t needed) const;
    void start(bool in_background, const std::function<void()>& work);
    std::optional<SaveOutcome> end_of_writing();
    SaveOutcome end_of_commit();
    void clean_up(int64_t step);
    SaveOutcome outcome(const Failure& failure);

    const Comm comm_;
    const std::string directory_;
    const CheckpointRetention retention_;
    const int64_t in_use_;
    FileCalls& calls_;
    Phase phase_ = Phase::idle;
    SaveJob job_;
    double began_ = 0;
    // The thread writes these; they are read after join().
    std::thread thread_;
    std::atomic<bool> working_{false};
    Failure failure_;
    StateFile file_;
    std::string prune_problem_;
};

}  // namespace llmc
