// Saves a checkpoint while training goes on. Every rank writes its own file in a thread. The ranks agree in their main
// threads, between two steps, so that no other thread ever communicates.
//
//   saver.begin(job);  // a collective; returns when the threads run
//   ... a step ...
//   if (saver.is_active() && !any_rank(saver.is_working()))
//       outcome = saver.advance();  // a collective: all files are written, then the manifest is
//
// Either all ranks' files are on the disk and the manifest names them, or the save has failed on every rank. Then its
// files are removed, and earlier checkpoints are as they were.
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
    Manifest manifest;                      // without its files
    std::vector<StateSlice> slices;         // the parts that this rank saves
    SliceBytes values;                      // read by the thread until is_working() is false
    bool in_background = true;              // false: begin() writes this rank's file itself
    std::function<void()> before_manifest;  // rank 0 calls it in the thread; may be empty
    std::vector<uint64_t> checksums;        // expected of the file; empty: not known
    Failure failure;                        // an error of this rank before begin(); it fails the save
};

struct SaveOutcome {
    int64_t step = 0;
    std::string path;
    std::string problem;  // "": saved
    ExitCode code = ExitCode::ok;
    std::vector<std::string> removed;  // older checkpoints that were removed; rank 0
    std::string prune_problem;         // why one that should have been removed is still there
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

    // Collectives. Only one save may be active. begin() returns an outcome only if it failed.
    std::optional<SaveOutcome> begin(SaveJob job);
    std::optional<SaveOutcome> advance();
    std::optional<SaveOutcome> wait();  // waits for the outcome; returns nothing if no save is active

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
