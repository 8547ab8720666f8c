#include "llmc/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "llmc/device/error.h"

namespace llmc {

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("create it");
    created_ = true;
}

AtomicFile::~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (created_) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what) const {
    throw Error(ExitCode::checkpoint, strprintf("%s: cannot %s: %s", path_.c_str(), what, std::strerror(errno)));
}

void AtomicFile::write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t done = ::write(fd_, from, std::min(bytes, size_t{1} << 30));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) fail("write it");
        from += done;
        bytes -= static_cast<size_t>(done);
    }
}

void AtomicFile::finish() {
    if (::fsync(fd_) != 0) fail("sync it to disk");
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail("close it");
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write it");
    created_ = false;
    // The rename too has to reach the disk; where a file system cannot sync a directory, it is as good as it gets.
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int parent = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) fail("open its directory");
    const bool synced = ::fsync(parent) == 0 || errno == EINVAL;
    const int error = errno;
    ::close(parent);
    errno = error;
    if (!synced) fail("sync its directory");
}

void write_atomically(const std::string& path, const std::string& text) {
    AtomicFile file(path);
    file.write(text.data(), text.size());
    file.finish();
}

}  // namespace llmc
