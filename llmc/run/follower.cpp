// Starts and ends scripts/follow.py. The script's standard input is a pipe whose other end only this process holds: the
// kernel closes it however the process ends, so the script always learns of it and always sends the last records.
#include "llmc/run/follower.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "llmc/base/text.h"
#include "llmc/run/child.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{20};  // how long a run that has ended waits

// The script next to the program, or in the checkout whose build/CONFIGURATION/ holds the program; "" if there is none.
std::string find_script() {
    std::error_code error;
    const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (const fs::path& root : {here, here.parent_path().parent_path()})
        if (const fs::path script = root / "scripts" / "follow.py"; fs::exists(script, error)) return script.string();
    return "";
}

}  // namespace

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
    const auto until = std::chrono::steady_clock::now() + kPatience;
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (ended == 0)
        std::fprintf(stderr, "note: --track: process %d still sends records and will end by itself\n",
                     static_cast<int>(pid_));
    else if (const std::string problem = describe_failure(status); ended == pid_ && !problem.empty())
        warn("the follower " + problem);
}

void Follower::warn(const std::string& problem) const {
    std::string command;
    for (const std::string& word : command_) command += " " + shell_quote(word);
    std::fprintf(stderr, "warning: --track: %s; nothing is lost, this sends what is missing:\n   %s\n", problem.c_str(),
                 command.c_str());
}

}  // namespace llmc
