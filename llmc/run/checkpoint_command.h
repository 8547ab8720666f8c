// The command of --after-checkpoint, which runs next to training.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/child.h"

namespace llmc {

// Runs the command of --after-checkpoint when a checkpoint is complete: an upload, an evaluation. One command runs at a
// time. Meanwhile the newest checkpoint waits for its command, and older ones get none. Training does not end when a
// command fails. Ctrl-C in a terminal does not reach the command, which writes to standard error.
class CheckpointCommand {
public:
    // `command` is one of the shell's; "" runs nothing.
    explicit CheckpointCommand(const std::string& command);

    // Runs the command for a checkpoint, now or after the command that runs.
    void start(int64_t step, const std::string& path);
    // Warns if the command has failed, and starts the next one. Does not wait.
    void look();
    // Looks about ten times a second until goes_on() returns false. `runs` says whether this rank's command still does.
    // Ranks without commands can thus wait for another rank's.
    void wait(const std::function<bool(bool runs)>& goes_on);
    // The steps whose checkpoints the command reads or is going to read.
    std::vector<int64_t> steps() const;

private:
    struct Task {
        int64_t step;
        std::string path;
    };
    struct Running {
        int64_t step;
        std::unique_ptr<Child> process;
    };
    void warn(int64_t step, const std::string& problem) const;

    const std::string command_;
    const std::string script_;  // for `sh -c`, with the path as $1
    std::optional<Running> running_;
    std::optional<Task> waiting_;
};

}  // namespace llmc
