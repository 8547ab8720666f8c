// Runs the command of --after-checkpoint, and warns if it fails.
#include "llmc/run/checkpoint_command.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "llmc/base/text.h"

namespace llmc {

// The script that runs the command with its first parameter as the last argument of the last command in it: before the
// operator that ends it ("train.sh &") and before a comment.
static std::string script_with_path(const std::string& command) {
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
        const std::optional<std::string> problem = running_->process->result();
        if (!problem) return;
        if (!problem->empty()) warn(running_->step, *problem);
        running_.reset();
    }
    if (!waiting_) return;
    const std::vector<std::string> command = {"/bin/sh", "-c", script_, "sh", waiting_->path};
    running_ = {waiting_->step, std::make_unique<Child>(command, Child::Pipes::none)};
    waiting_.reset();
}

void CheckpointCommand::wait(const std::function<bool(bool runs)>& goes_on) {
    look();
    if (running_) print_line("waiting for --after-checkpoint of step {}", waiting_ ? waiting_->step : running_->step);
    for (; goes_on(running_.has_value()); look()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
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

}  // namespace llmc
