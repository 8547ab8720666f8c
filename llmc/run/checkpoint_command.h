// Runs a user's command next to training when a checkpoint is complete, for --after-checkpoint: an upload, an
// evaluation.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace llmc {

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

}  // namespace llmc
