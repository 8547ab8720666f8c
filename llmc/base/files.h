// Files that must be on the disk when we say so. Writing goes through FileCalls, the system calls themselves, so that
// tests can record what a save does, cut it anywhere, and let any call fail.
//
// What a crash leaves is decided by three rules (Pillai et al., "All file systems are not created equal", OSDI 2014):
// the bytes of a file are safe after fsync() of the file, its name after fsync() of the directory, and rename() shows
// either the old or the new name, but may reach the disk before the bytes do.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/error.h"

namespace llmc {

// As the manual pages have them: -1 and errno on failure.
class FileCalls {
public:
    virtual ~FileCalls() = default;
    virtual int open(const char* path, int flags, int mode);
    virtual ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset);
    virtual int fsync(int fd);
    virtual int close(int fd);
    virtual int rename(const char* from, const char* to);
    virtual int mkdir(const char* path, int mode);
    virtual int unlink(const char* path);
    virtual int unlink_at(int directory, const char* name);  // `directory`: of open()
    virtual int rmdir(const char* path);
};
FileCalls& system_calls();

// "PATH: cannot ACTION: REASON" for the present errno. No room left has an exit code of its own: freeing space helps,
// retrying does not.
[[noreturn]] void fail_to_write(const std::string& path, const char* action);

// A new file.
class NewFile {
public:
    NewFile(FileCalls& calls, const std::string& path);  // an older one is replaced
    ~NewFile();
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;

    void append(const void* data, size_t bytes) { write_at(bytes_, data, bytes); }
    void write_at(uint64_t offset, const void* data, size_t bytes);
    uint64_t bytes() const { return bytes_; }  // where what has been written ends
    void finish();                             // to the disk

private:
    FileCalls& calls_;
    const std::string path_;
    int fd_ = -1;
    uint64_t bytes_ = 0;
};

void sync_directory(FileCalls& calls, const std::string& path);

// A file that appears whole or not at all: it is written as PATH.tmp and then renamed. If it is not finished, PATH.tmp
// is deleted and an older file at PATH stays.
class AtomicFile {
public:
    AtomicFile(FileCalls& calls, const std::string& path);
    ~AtomicFile();

    void append(const void* data, size_t bytes) { file_.append(data, bytes); }
    void write_at(uint64_t offset, const void* data, size_t bytes) { file_.write_at(offset, data, bytes); }
    void finish();  // with its name on the disk too

private:
    FileCalls& calls_;
    const std::string path_;
    NewFile file_;
    bool finished_ = false;
};
void write_synced(FileCalls& calls, const std::string& path, const std::string& text);

// The names in a directory, sorted; none where that is no directory.
std::vector<std::string> names_in(const std::string& directory);

// A regular file, no symbolic link, opened for reading. Closes itself.
class RegularFile {
public:
    explicit RegularFile(const std::string& path);
    ~RegularFile();
    RegularFile(const RegularFile&) = delete;
    RegularFile& operator=(const RegularFile&) = delete;

    uint64_t bytes() const { return bytes_; }
    void read(uint64_t offset, void* to, size_t bytes) const;  // all of them

private:
    const std::string path_;
    int fd_ = -1;
    uint64_t bytes_ = 0;
};
// A RegularFile of at most `limit` bytes.
std::string read_whole(const std::string& path, uint64_t limit);

// Bytes that a user may still write where `path` is, or will be.
uint64_t free_bytes(const std::string& path);

}  // namespace llmc
