// Opening and reading input files; every error names the kind of file, the path and what to give instead.
// build: fuzzed
#include "llmc/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace llmc {
namespace {

const char* type_name(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    return S_ISSOCK(mode) ? "a socket" : "a device";
}

}  // namespace

InputFile::InputFile(const std::string& path, const InputKind& kind)
    : path_(path),
      kind_(kind),
      fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (kind.links ? 0 : O_NOFOLLOW))) {
    struct stat status = {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) fail(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail(fmt::format("it is {}, not a regular file", type_name(status.st_mode)));
    bytes_ = static_cast<uint64_t>(status.st_size);
    if (kind.largest_mib > 0 && bytes_ > kind.largest_mib << 20)
        fail(fmt::format("it has {} bytes, and the limit is {} MiB", bytes_, kind.largest_mib));
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

ssize_t pread_fully(int fd, void* to, size_t bytes, uint64_t offset) {
    constexpr size_t most = size_t{1} << 30;  // one call moves less than 2 GiB on Linux
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got =
            ::pread(fd, static_cast<char*>(to) + done, std::min(bytes - done, most), static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(done);
}

}  // namespace llmc
