// System calls with their retries and messages; the rules they follow are in files.h.
// build: threads, fuzzed
#include "llmc/base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "llmc/base/clock.h"

namespace llmc {

constexpr size_t kMostIoBytes = size_t{1} << 30;  // one call moves less than 2 GiB on Linux

int FileCalls::open(const char* path, int flags, int mode) { return ::open(path, flags | O_CLOEXEC, mode); }
ssize_t FileCalls::pwrite(int fd, const void* data, size_t bytes, off_t offset) {
    return ::pwrite(fd, data, bytes, offset);
}
int FileCalls::fsync(int fd) { return ::fsync(fd); }
int FileCalls::close(int fd) { return ::close(fd); }
int FileCalls::rename(const char* from, const char* to) { return std::rename(from, to); }
int FileCalls::mkdir(const char* path, int mode) { return ::mkdir(path, static_cast<mode_t>(mode)); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }
int FileCalls::unlink_at(int directory, const char* name) { return ::unlinkat(directory, name, 0); }
int FileCalls::rmdir(const char* path) { return ::rmdir(path); }

FileCalls& system_calls() {
    static FileCalls calls;
    return calls;
}

static bool disk_is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

ExitCode code_of(int error, ExitCode otherwise) {
    return disk_is_full(error) || error == EMFILE || error == ENFILE ? ExitCode::no_resources : otherwise;
}

std::string reason_of(int error, const std::string& advice) {
    const std::string what = error == EMFILE   ? "raise this shell's limit (ulimit -n)"
                             : error == ENFILE ? "raise this machine's limit (sysctl fs.file-max)"
                                               : advice;
    return std::strerror(error) + (what.empty() ? what : "; " + what);
}

static const char* type_name(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    return S_ISSOCK(mode) ? "a socket" : "a device";
}

void fail_to_write(const std::string& path, const char* action) {
    const int error = errno;
    const char* const advice = disk_is_full(error) ? "free space there or choose another directory" : "";
    throw Error(code_of(error, ExitCode::checkpoint),
                fmt::format("{}: cannot {}: {}", path, action, reason_of(error, advice)));
}

NewFile::NewFile(FileCalls& calls, const std::string& path) : calls_(calls), path_(path) {
    const auto create = [&] { return calls.open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666); };
    fd_ = create();
    // Deletes what is there instead of writing to it, because a symbolic link would lead to somebody else's file.
    if (fd_ < 0 && errno == EEXIST && calls.unlink(path.c_str()) == 0) fd_ = create();
    if (fd_ < 0) fail_to_write(path, "create it");
}

void NewFile::write_at(uint64_t offset, const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t done = calls_.pwrite(fd_, from, std::min(bytes, kMostIoBytes), static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = ENOSPC;  // some devices answer 0 when they are full
        if (done <= 0) fail_to_write(path_, "write to it");
        from += done;
        bytes -= static_cast<size_t>(done);
        offset += static_cast<uint64_t>(done);
        bytes_ = std::max(bytes_, offset);
    }
}

void NewFile::finish() {
    while (calls_.fsync(fd_) != 0)
        if (errno != EINTR) fail_to_write(path_, "flush it to disk");
    const int fd = fd_;
    fd_ = -1;
    // Network file systems report failed writes when the file is closed. After EINTR the descriptor is closed anyway.
    if (calls_.close(fd) != 0 && errno != EINTR) fail_to_write(path_, "close it");
}

void sync_directory(FileCalls& calls, const std::string& path) {
    const int fd = calls.open(path.c_str(), O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) fail_to_write(path, "open the directory");
    int result;
    do {
        result = calls.fsync(fd);
    } while (result != 0 && errno == EINTR);
    const int error = errno;
    calls.close(fd);
    errno = error;
    // Some file systems answer EINVAL because they have nothing to flush for a directory.
    if (result != 0 && errno != EINVAL) fail_to_write(path, "flush the directory to disk");
}

// Refuses the path of a device or pipe, such as /dev/null: root would replace it for all programs.
static const std::string& require_replaceable(const std::string& path) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        throw Error(ExitCode::checkpoint, "{}: cannot write to it: it is {}, not a regular file", path,
                    type_name(status.st_mode));
    return path;
}

AtomicFile::AtomicFile(FileCalls& calls, const std::string& path)
    : calls_(calls), path_(require_replaceable(path)), file_(calls, path + ".tmp") {}

void AtomicFile::finish() {
    file_.finish();
    if (calls_.rename((path_ + ".tmp").c_str(), path_.c_str()) != 0)
        fail_to_write(path_, "rename the finished file to it");
    finished_ = true;
    const std::string directory = std::filesystem::path(path_).parent_path().string();
    sync_directory(calls_, directory.empty() ? "." : directory);
}

void write_synced(FileCalls& calls, const std::string& path, const std::string& text) {
    AtomicFile file(calls, path);
    file.append(text.data(), text.size());
    file.finish();
}

namespace fs = std::filesystem;

bool path_exists(const std::string& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}
bool name_exists(const std::string& path) {
    std::error_code ignored;
    return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}
bool directory_exists(const std::string& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}

std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
        names.push_back(entry->path().filename().string());
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
        throw Error(code_of(error.value(), ExitCode::checkpoint), "cannot list {}: {}", directory,
                    reason_of(error.value()));
    std::sort(names.begin(), names.end());
    return names;
}

std::string resolved_path(const std::string& path) {
    std::error_code ignored;
    // Another component makes "dir" and "dir/" the same.
    return fs::weakly_canonical(fs::path(path) / "x", ignored).parent_path().string();
}

uint64_t free_bytes(const std::string& path) {
    struct statvfs status;
    std::filesystem::path at = path;
    while (::statvfs(at.empty() ? "." : at.c_str(), &status) != 0) {
        if (errno != ENOENT || at.empty())
            throw Error(ExitCode::checkpoint, "{}: cannot read the free space: {}", path, std::strerror(errno));
        at = at.parent_path();
    }
    return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

// The beginning of a pointer: the small text that lies at a file's path until Git LFS has fetched the file.
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/v1";

InputFile::InputFile(const std::string& path, const InputKind& kind)
    : path_(path),
      kind_(kind),
      fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (kind.links ? 0 : O_NOFOLLOW))) {
    struct stat status = {};
    if (fd_ < 0 && code_of(errno, kind_.code) != kind_.code)
        throw Error(ExitCode::no_resources, "cannot open the {} {}: {}", kind_.name, path, reason_of(errno));
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) fail(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail(fmt::format("it is {}, not a regular file", type_name(status.st_mode)));
    bytes_ = static_cast<uint64_t>(status.st_size);
    if (kind.largest_mib > 0 && bytes_ > kind.largest_mib << 20)
        fail(fmt::format("it has {} bytes, and the limit is {} MiB", bytes_, kind.largest_mib));
    std::string start(kLfsPointer.size(), '\0');
    if (pread_fully(fd_, start.data(), start.size(), 0) > 0 && start == kLfsPointer)
        fail("it is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`");
}

InputFile::~InputFile() { ::close(fd_); }

// Closes the file itself: when the constructor throws, the destructor does not run.
void InputFile::fail(const std::string& reason) const {
    if (fd_ >= 0) ::close(fd_);
    throw Error(kind_.code, fmt::format("cannot open the {} {}: {}; give {}", kind_.name, path_, reason, kind_.hint));
}

size_t InputFile::read_at(uint64_t offset, void* to, size_t bytes) const {
    const ssize_t got = pread_fully(fd_, to, bytes, offset);
    if (got < 0)
        throw Error(kind_.code, fmt::format("reading the {} {} at byte {} failed: {}", kind_.name, path_, offset,
                                            std::strerror(errno)));
    return static_cast<size_t>(got);
}

std::string read_input(const std::string& path, const InputKind& kind) {
    const InputFile file(path, kind);
    std::string content(file.bytes(), '\0');
    content.resize(file.read_at(0, content.data(), content.size()));
    return content;
}

bool wait_for_event(int fd, short events, double deadline) {
    for (;;) {
        const double left = std::max(deadline - monotonic_seconds(), 0.0);
        pollfd ready{fd, events, 0};
        const int found = ::poll(&ready, 1, static_cast<int>(std::ceil(1e3 * std::min(left, 1e6))));
        if (found > 0) return true;
        if (left == 0 || (found < 0 && errno != EINTR)) return false;
    }
}

ssize_t pread_fully(int fd, void* to, size_t bytes, uint64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        const size_t piece = std::min(bytes - done, kMostIoBytes);
        const ssize_t got = ::pread(fd, static_cast<char*>(to) + done, piece, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(done);
}

}  // namespace llmc
