// Appends lines to a file, and copes with full disks and with files that are moved away.
#include "llmc/log/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {
namespace {

constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC;
constexpr size_t kMostWaiting = size_t{64} << 20;

void warn(const std::string& text) { std::fprintf(stderr, "train_gpt: %s\n", text.c_str()); }

bool ends_line(int fd, int64_t bytes) {
    char last = '\n';
    return bytes == 0 || (::pread(fd, &last, 1, bytes - 1) == 1 && last == '\n');
}

}  // namespace

LogFile::~LogFile() {
    if (fd_ < 0) return;
    if (!waiting_.empty()) write_waiting();
    if (!waiting_.empty()) warn(path_ + " lacks the last " + format_bytes(waiting_.size()) + " of its lines");
    ::close(fd_);
}

void LogFile::open(const std::string& path, int64_t bytes) {
    path_ = path;
    fd_ = ::open(path.c_str(), kFlags, 0666);
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0)
        throw Error(errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? ExitCode::no_resources : ExitCode::bad_flags,
                    strprintf("cannot write %s: %s; choose another run directory with --out", path.c_str(),
                              std::strerror(errno)));
    cut(status.st_size, bytes);
}

void LogFile::cut(int64_t size, int64_t bytes) {
    if (size < bytes)
        warn(strprintf("%s has %s, where the checkpoint's run had written %s: the records of some steps are elsewhere",
                       path_.c_str(), format_bytes(size).c_str(), format_bytes(bytes).c_str()));
    if (size > bytes && !ends_line(fd_, bytes))
        warn(path_ + " is not the file that the checkpoint's run wrote: it may come to have some steps twice");
    else if (size > bytes && ::ftruncate(fd_, bytes) == 0)
        size = bytes;
    if (!ends_line(fd_, size)) waiting_ = "\n";  // goes before the first line
}

// Somebody may have moved or deleted the file: reopens it by its name.
void LogFile::follow_path() {
    struct stat named {
    }, held{};
    if (::fstat(fd_, &held) != 0) return;
    if (::stat(path_.c_str(), &named) == 0 && named.st_ino == held.st_ino && named.st_dev == held.st_dev) return;
    const int fd = ::open(path_.c_str(), kFlags, 0666);
    if (fd < 0) return;  // the run directory is gone; the old file still takes lines
    ::close(fd_);
    fd_ = fd;
    warn(path_ + " was moved or deleted: the next records go to a new file with that name");
}

void LogFile::append(const std::string& line) {
    if (fd_ < 0) return;
    follow_path();
    if (waiting_.size() + line.size() > kMostWaiting)
        left_out_++;
    else
        waiting_ += line + "\n";
    write_waiting();
}

void LogFile::write_waiting() {
    while (!waiting_.empty()) {
        const ssize_t written = ::write(fd_, waiting_.data(), waiting_.size());
        if (written < 0 && errno == EINTR) continue;
        if (written > 0) {
            waiting_.erase(0, static_cast<size_t>(written));
            continue;
        }
        if (!failing_)
            warn(strprintf("cannot write %s: %s; the run goes on, and writes the records later if it can",
                           path_.c_str(), std::strerror(errno)));
        failing_ = true;
        return;
    }
    if (!failing_) return;
    warn(path_ + " can be written again" +
         (left_out_ > 0 ? strprintf("; %s lines are lost", with_commas(left_out_).c_str()) : ""));
    failing_ = false;
    left_out_ = 0;
}

int64_t LogFile::size() const {
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) return 0;
    return status.st_size + static_cast<int64_t>(waiting_.size());
}

std::function<void()> LogFile::synchronizer() const {
    const auto close = [](const int* fd) {
        if (*fd >= 0) ::close(*fd);
        delete fd;
    };
    const std::shared_ptr<int> fd(new int(::fcntl(fd_, F_DUPFD_CLOEXEC, 0)), close);
    return [fd, path = path_] {
        int result;
        do {
            result = ::fsync(*fd);
        } while (result != 0 && errno == EINTR);
        // EINVAL: /dev/null and pipes cannot be flushed.
        if (result != 0 && errno != EINVAL)
            warn(strprintf("cannot bring %s to the disk: %s", path.c_str(), std::strerror(errno)));
    };
}

}  // namespace llmc
