// Saving a checkpoint beside training. Every rank writes its own file in a thread of its own; what the ranks have to
// agree on they do in the main thread, between two steps, so that no thread but that one ever talks to another rank.
//
//   saver.begin(job);                                 // a collective; returns when the threads run
//   ... a step ...
//   if (saver.is_active() && !any_rank(saver.is_working()))
//       outcome = saver.advance();                    // a collective: all files are written, then the manifest is
//
// Either all ranks' files are on the disk and the manifest names them, or the save has failed on every rank, what it
// has written is removed, and earlier checkpoints are as they were.
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
#include "llmc/checkpoint/state_file.h"
#include "llmc/comm/agreement.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct SaveJob {
    Manifest manifest;               // but for its files
    std::vector<StateSlice> slices;  // of this rank
    SliceBytes values;               // read by the thread until is_working() is false
    bool in_background = true;       // else begin() writes this rank's file itself
    std::function<void()>
        before_manifest;              // called on rank 0, in the thread, before the manifest is written; may be empty
    std::vector<uint64_t> checksums;  // that the file has to have; empty: not known
    Failure failure;                  // of this rank, before begin()
};

struct SaveOutcome {
    int64_t step = 0;
    std::string path;
    std::string problem;  // "": saved
    ExitCode code = ExitCode::ok;
    std::vector<std::string> removed;  // checkpoints that need not be kept any more; rank 0
    std::string prune_problem;         // why one of those is still there
    uint64_t bytes = 0;
    double seconds = 0;
};

class CheckpointSaver {
public:
    // `in_use`: the step that the run was resumed from, or -1.
    CheckpointSaver(const Comm& comm, const std::string& directory, const CheckpointRetention& retention,
                    int64_t in_use, FileCalls& calls = system_calls());
    ~CheckpointSaver();
    CheckpointSaver(const CheckpointSaver&) = delete;
    CheckpointSaver& operator=(const CheckpointSaver&) = delete;

    // Collectives. One save at a time. An outcome of begin() is a failure.
    std::optional<SaveOutcome> begin(SaveJob job);
    std::optional<SaveOutcome> advance();
    std::optional<SaveOutcome> wait();  // until there is an outcome; nothing if no save is active

    bool is_active() const { return phase_ != Phase::idle; }
    bool is_working() const { return working_; }  // this rank's thread

private:
    enum class Phase { idle, writing, committing };
    void join();
    void check_room() const;
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
    // Written by the thread, read after join().
    std::thread thread_;
    std::atomic<bool> working_{false};
    Failure failure_;
    StateFile file_;
    std::vector<std::string> removed_;
    std::string prune_problem_;
};

}  // namespace llmc
