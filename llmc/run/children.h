// Programs that run next to training, as children of rank 0: the user's command of --after-checkpoint, and
// scripts/follow.py of --track. Training neither waits for them nor ends when they fail. Ctrl-C in a terminal does not
// reach them, and they write to standard error.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/flags/options.h"
#include "llmc/log/run_directory.h"

namespace llmc {

// Runs the command of --after-checkpoint when a checkpoint is complete: an upload, an evaluation.
class CheckpointCommand {
public:
    // `command` is one of the shell's; "" runs nothing.
    explicit CheckpointCommand(const std::string& command) : command_(command) {}

    // Starts the command with the checkpoint's path as its last argument. Commands of earlier checkpoints may still be
    // running.
    void start(int64_t step, const std::string& path);
    // Warns of the commands that have failed since the last call. Does not wait.
    void look();
    // Waits for the commands that are still running, and calls `alive` about ten times a second meanwhile.
    void wait(const std::function<void()>& alive);

private:
    struct Running {
        int64_t step;
        pid_t pid;
    };
    void warn(int64_t step, const std::string& problem) const;

    const std::string command_;
    std::vector<Running> running_;
};

// Runs scripts/follow.py for --track. It reads metrics.jsonl.
class Follower {
public:
    // Starts the script if --track asks for it and this rank writes the run directory. A script that cannot be started
    // is a warning that says what to install.
    Follower(const Options& options, const RunDirectory& directory);
    // Tells the script that the run has ended and waits up to 20 seconds while it sends the last records. One that
    // takes longer continues on its own. One that failed is a warning with the command that catches up.
    ~Follower();
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;

private:
    std::string start();  // returns the problem, "" if there is none
    void warn(const std::string& problem) const;

    std::vector<std::string> command_;  // the command with which a user would follow the run
    pid_t pid_ = -1;                    // -1: not running
    int alive_ = -1;                    // end of a pipe to the script; it ends when this is closed or the process dies
};

}  // namespace llmc
