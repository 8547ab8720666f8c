// Starts child processes, exchanges text with them, and describes how they end.
#include "llmc/base/child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/files.h"

namespace llmc {

// Starts the program with `input` as its standard input and `output` as its standard output. Returns 0 or an errno.
static int spawn(const std::vector<std::string>& command, int input, int output, const std::string& directory,
                 pid_t& pid) {
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    // The child may live longer than this process and must not hold its sockets, which tell other ranks that it is
    // gone.
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    if (!directory.empty()) posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
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

std::string find_packaged(const std::string& name) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (const fs::path& root : {here, here.parent_path().parent_path()})
        if (fs::exists(root / name, error)) return (root / name).string();
    return "";
}

Child::Child(const std::vector<std::string>& command, Pipes pipes, const std::string& directory) {
    int ends[2] = {-1, -1};
    if (pipes == Pipes::none)
        ends[1] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    else if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        start_error_ = errno;
    if (start_error_ == 0)
        start_error_ = spawn(command, ends[1], pipes == Pipes::both ? ends[1] : STDERR_FILENO, directory, pid_);
    if (ends[1] >= 0) ::close(ends[1]);
    socket_ = ends[0];
    if (start_error_ != 0) pid_ = -1;
}

void Child::close_pipes() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void Child::kill() {
    if (pid_ < 0 || end_) return;
    ::kill(-pid_, SIGKILL);
    int status = 0;
    if (::waitpid(pid_, &status, 0) == pid_) end_ = status;
}

std::optional<std::string> Child::result() {
    if (start_error_ != 0) return "cannot be started: " + reason_of(start_error_);
    int status = 0;
    if (!end_) {
        const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
        if (ended == 0) return std::nullopt;
        end_ = ended == pid_ ? status : 0;  // somebody else has waited for it
    }
    if (WIFSIGNALED(*end_)) return fmt::format("was killed by signal {}", WTERMSIG(*end_));
    return WEXITSTATUS(*end_) == 0 ? "" : fmt::format("failed with exit code {}", WEXITSTATUS(*end_));
}

std::optional<std::string> Child::wait(double seconds) {
    const double until = monotonic_seconds() + seconds;
    std::optional<std::string> end = result();
    for (; !end && monotonic_seconds() < until; end = result())
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return end;
}

bool Child::write(const std::string& text, double deadline) {
    for (size_t sent = 0; sent < text.size();) {
        if (!wait_for_event(socket_, POLLOUT, deadline)) return false;
        const ssize_t bytes = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes < 0 && errno != EAGAIN && errno != EINTR) return false;
        sent += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
    }
    return true;
}

// Reads more output. Returns false at its end, or if the deadline passes first.
bool Child::receive(double deadline) {
    char buffer[1 << 16];
    while (!closed_ && wait_for_event(socket_, POLLIN, deadline)) {
        const ssize_t bytes = ::recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (bytes > 0) unread_.append(buffer, static_cast<size_t>(bytes));
        closed_ = bytes <= 0;
        return bytes > 0;
    }
    return false;
}

bool Child::read_line(std::string& line, double deadline) {
    size_t end;
    while ((end = unread_.find('\n')) == unread_.npos)
        if (!receive(deadline)) return false;
    line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    return true;
}

bool Child::read_all(std::string& text, double deadline) {
    while (receive(deadline)) {
    }
    text = std::exchange(unread_, "");
    return closed_;
}

}  // namespace llmc
