// Starts programs next to the run, and reports those that fail.
#include "llmc/run/run.h"

#include <cerrno>
#include <chrono>
#include <thread>

#include "llmc/base/text.h"

namespace llmc {
namespace {

constexpr double kPatience = 20;  // seconds: how long a run that has ended waits for its follower

}  // namespace

// ---- --after-checkpoint ---------------------------------------------------------------------------------------------

void CheckpointCommand::start(int64_t step, const std::string& path) {
    if (!command_.empty())
        running_.push_back({step, Child({"/bin/sh", "-c", command_ + " \"$@\"", "sh", path}, Child::Pipes::none)});
}

void CheckpointCommand::look() {
    std::erase_if(running_, [&](Running& child) {
        const std::optional<std::string> problem = child.process.result();
        if (problem && !problem->empty()) warn(child.step, *problem);
        return problem.has_value();
    });
}

void CheckpointCommand::wait(const std::function<void()>& alive) {
    look();
    if (!running_.empty()) print_line("waiting for --after-checkpoint of step {}", running_.back().step);
    for (; !running_.empty(); look()) {
        alive();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

void CheckpointCommand::warn(int64_t step, const std::string& problem) const {
    print_error("warning: --after-checkpoint '{}' {} for the checkpoint of step {}; training continues", command_,
                problem, step);
}

// ---- --track --------------------------------------------------------------------------------------------------------

// Only this process holds the other end of the script's standard input: the kernel closes it however the process ends,
// so the script always learns of it and always sends the last records.
Follower::Follower(const Options& o, const RunDirectory& directory) {
    if (o.track.value.empty() || !directory.active()) return;
    const std::string script = find_packaged("scripts/follow.py");
    command_ = {"python3", script.empty() ? "scripts/follow.py" : script, directory.path()};
    for (const std::string& target : o.track.value) command_.push_back("--" + target);
    if (script.empty()) {
        warn("there is no scripts/follow.py next to the program");
        return;
    }
    std::vector<std::string> command = command_;
    command.push_back("--child");
    script_.emplace(command, Child::Pipes::input);
    if (script_->start_error() == 0) return;
    warn(script_->start_error() == ENOENT ? "python3 is not installed (apt-get install python3; scripts/setup.sh "
                                            "--with-tracking adds the packages)"
                                          : "python3 " + script_->result().value());
    script_.reset();
}

Follower::~Follower() {
    if (!script_) return;
    script_->close_pipes();
    const std::optional<std::string> problem = script_->wait(kPatience);
    if (!problem)
        print_error("note: --track: process {} still sends records and will end by itself", script_->pid());
    else if (!problem->empty())
        warn("the follower " + *problem);
}

void Follower::warn(const std::string& problem) const {
    std::string command;
    for (const std::string& word : command_) command += " " + shell_quote(word);
    print_error("warning: --track: {}; nothing is lost, this sends what is missing:\n   {}", problem, command);
}

}  // namespace llmc
