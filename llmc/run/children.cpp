// Starts programs next to the run, and reports those that fail.
#include "llmc/run/run.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "llmc/base/clock.h"
#include "llmc/base/text.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr double kPatience = 20;  // seconds: how long a run that has ended waits for its follower

// Starts the command with `input` as its standard input. Returns 0 or an errno.
int start_child(const std::vector<std::string>& command, int input, pid_t& pid) {
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    // The child may live longer than the run and must not hold its sockets, which tell other ranks that it is gone.
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    // A separate process group: Ctrl-C in a terminal then reaches only the run, which still has files to write.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // The run ignores these signals. A shell that inherits this cannot undo it: `zcat ... | head` would fail.
    sigset_t ignored_here;
    sigemptyset(&ignored_here);
    for (const int signal_number : kIgnoredSignals) sigaddset(&ignored_here, signal_number);
    posix_spawnattr_setsigdefault(&attributes, &ignored_here);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

// "failed with exit code 3", "was killed by signal 9"; "" for a status of success. `status` is from waitpid().
std::string describe_failure(int status) {
    if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? "" : fmt::format("failed with exit code {}", WEXITSTATUS(status));
}

// The script next to the program, or in the checkout whose build/CONFIGURATION/ holds the program; "" if there is none.
std::string find_script() {
    std::error_code error;
    const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (const fs::path& root : {here, here.parent_path().parent_path()})
        if (const fs::path script = root / "scripts" / "follow.py"; fs::exists(script, error)) return script.string();
    return "";
}

}  // namespace

// ---- --after-checkpoint ---------------------------------------------------------------------------------------------

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

// The script's standard input is a pipe whose other end only this process holds: the kernel closes it however the
// process ends, so the script always learns of it and always sends the last records.
Follower::Follower(const Options& o, const RunDirectory& directory) {
    if (o.track.value.empty() || !directory.active()) return;
    const std::string script = find_script();
    command_ = {"python3", script.empty() ? "scripts/follow.py" : script, directory.path()};
    for (const std::string& target : o.track.value) command_.push_back("--" + target);
    const std::string problem = script.empty() ? "there is no scripts/follow.py next to the program" : start();
    if (!problem.empty()) warn(problem);
}

std::string Follower::start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return std::strerror(errno);
    std::vector<std::string> child = command_;
    child.push_back("--child");
    const int error = start_child(child, ends[0], pid_);
    ::close(ends[0]);
    alive_ = ends[1];
    if (error == 0) return "";
    pid_ = -1;
    if (error != ENOENT) return std::string("python3 cannot be started: ") + std::strerror(error);
    return "python3 is not installed (apt-get install python3; scripts/setup.sh --with-tracking adds the packages)";
}

Follower::~Follower() {
    if (alive_ >= 0) ::close(alive_);
    if (pid_ < 0) return;
    const double until = monotonic_seconds() + kPatience;
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && monotonic_seconds() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (ended == 0)
        print_error("note: --track: process {} still sends records and will end by itself", pid_);
    else if (const std::string problem = describe_failure(status); ended == pid_ && !problem.empty())
        warn("the follower " + problem);
}

void Follower::warn(const std::string& problem) const {
    std::string command;
    for (const std::string& word : command_) command += " " + shell_quote(word);
    print_error("warning: --track: {}; nothing is lost, this sends what is missing:\n   {}", problem, command);
}

}  // namespace llmc
