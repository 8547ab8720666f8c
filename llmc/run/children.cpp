// Starts programs next to the run, and reports those that fail.
#include "llmc/run/run.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "llmc/base/text.h"

namespace llmc {
namespace {

constexpr double kPatience = 20;  // seconds: how long a run that has ended waits for its follower

}  // namespace

// ---- --after-checkpoint ---------------------------------------------------------------------------------------------

std::string script_with_path(const std::string& command) {
    char quote = '\0';   // the quotation mark that is open, if any
    size_t end = 0;      // where the last argument ends
    bool begins = true;  // a word begins here
    for (size_t i = 0; i < command.size(); i++) {
        const char c = command[i];
        if (quote == '\0' && c == '#' && begins) {  // a comment
            i = std::min(command.find('\n', i), command.size());
            continue;
        }
        const bool ends_words = quote == '\0' && std::strchr(" \t\n;&", c) != nullptr;
        begins = ends_words;
        if (c == '\\' && quote != '\'')
            i++;  // the next character has no meaning for the shell
        else if (quote == c)
            quote = '\0';
        else if (quote == '\0' && (c == '\'' || c == '"'))
            quote = c;
        if (!ends_words) end = i + 1;
    }
    end = std::min(end, command.size());
    return command.substr(0, end) + " \"$@\"" + command.substr(end);
}

CheckpointCommand::CheckpointCommand(const std::string& command)
    : command_(command), script_(script_with_path(command)) {}

void CheckpointCommand::start(int64_t step, const std::string& path) {
    if (command_.empty()) return;
    look();
    if (waiting_)
        print_line("note: --after-checkpoint is not run for step {}: it still runs for step {}, and step {} is newer",
                   waiting_->step, running_->step, step);
    waiting_ = {step, path};
    look();
}

void CheckpointCommand::look() {
    if (running_) {
        const std::optional<std::string> problem = running_->process.result();
        if (!problem) return;
        if (!problem->empty()) warn(running_->step, *problem);
        running_.reset();
    }
    if (!waiting_) return;
    running_.emplace(waiting_->step, Child({"/bin/sh", "-c", script_, "sh", waiting_->path}, Child::Pipes::none));
    waiting_.reset();
}

void CheckpointCommand::wait(const std::function<void()>& alive) {
    look();
    if (running_) print_line("waiting for --after-checkpoint of step {}", waiting_ ? waiting_->step : running_->step);
    for (; running_; look()) {
        alive();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

std::vector<int64_t> CheckpointCommand::steps() const {
    std::vector<int64_t> steps;
    if (running_) steps.push_back(running_->step);
    if (waiting_) steps.push_back(waiting_->step);
    return steps;
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
