// Runs a user's command when a checkpoint is complete. See checkpoint_command.h.
#include "llmc/run/checkpoint_command.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "llmc/run/child.h"

namespace llmc {

void CheckpointCommand::start(int64_t step, const std::string& path) {
    if (command_.empty()) return;
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_t pid = -1;
    const int error = start_child({"/bin/sh", "-c", command_ + " \"$@\"", "sh", path}, nothing, pid);
    if (nothing >= 0) ::close(nothing);
    if (error != 0)
        warn(step, std::string("cannot be started: ") + std::strerror(error));
    else
        running_.push_back({step, pid});
}

void CheckpointCommand::look() {
    std::erase_if(running_, [&](const Running& child) {
        int status = 0;
        const pid_t ended = ::waitpid(child.pid, &status, WNOHANG);
        if (ended == 0) return false;
        const std::string problem = ended == child.pid ? describe_failure(status) : "";
        if (!problem.empty()) warn(child.step, problem);
        return true;
    });
}

void CheckpointCommand::wait(const std::function<void()>& alive) {
    look();
    if (!running_.empty())
        std::printf("waiting for --after-checkpoint of step %lld\n", static_cast<long long>(running_.back().step));
    for (; !running_.empty(); look()) {
        alive();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

void CheckpointCommand::warn(int64_t step, const std::string& problem) const {
    std::fprintf(stderr, "warning: --after-checkpoint '%s' %s for the checkpoint of step %lld; training continues\n",
                 command_.c_str(), problem.c_str(), static_cast<long long>(step));
}

}  // namespace llmc
