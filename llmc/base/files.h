// Files: writers whose bytes are safely on the disk when they return, and the only way in which the program opens a
// file to read it.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/error.h"

namespace llmc {

// ---- writing --------------------------------------------------------------------------------------------------------
// Writing goes through FileCalls, a thin layer over the system calls, so that tests can record what a save does, cut it
// off anywhere, and let any call fail.
//
// Three rules decide what survives a crash (Pillai et al., "All file systems are not created equal", OSDI 2014). The
// bytes of a file are safe after fsync() of the file, and its name after fsync() of the directory. rename() shows
// either the old or the new name, but may reach the disk before the bytes do.

// System calls as their manual pages describe them: -1 and errno on failure.
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
    virtual int unlink_at(int directory, const char* name);  // `directory` is a descriptor from open()
    virtual int rmdir(const char* path);
};
FileCalls& system_calls();

// The exit code and the text of an errno. A disk or quota that is full, a file above the limit of `ulimit -f` and too
// many open files are no_resources, because retrying does not help, and other errnos have the given code. The text of
// too many open files names the limit to raise, and others get the given advice: "Permission denied; ADVICE".
ExitCode code_of(int error, ExitCode otherwise);
std::string reason_of(int error, const std::string& advice = "");

// Throws an Error "PATH: cannot ACTION: REASON" for the present errno.
[[noreturn]] void fail_to_write(const std::string& path, const char* action);

// A new file, open for writing. Closes itself.
class NewFile {
public:
    NewFile(FileCalls& calls, const std::string& path);  // replaces an existing file or link
    ~NewFile() {
        if (fd_ >= 0) calls_.close(fd_);
    }
    NewFile(NewFile&&) = delete;

    void append(const void* data, size_t bytes) { write_at(bytes_, data, bytes); }
    void write_at(uint64_t offset, const void* data, size_t bytes);
    uint64_t bytes() const { return bytes_; }  // the end of the last byte written so far
    void finish();                             // flushes to the disk and closes

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
    ~AtomicFile() {
        if (!finished_) calls_.unlink((path_ + ".tmp").c_str());
    }

    void append(const void* data, size_t bytes) { file_.append(data, bytes); }
    void write_at(uint64_t offset, const void* data, size_t bytes) { file_.write_at(offset, data, bytes); }
    void finish();  // returns when the content and the name are on the disk

private:
    FileCalls& calls_;
    const std::string path_;
    NewFile file_;
    bool finished_ = false;
};
void write_synced(FileCalls& calls, const std::string& path, const std::string& text);

// Questions about a path, which never throw. A link is followed, except by name_exists(), which is also true for a link
// that leads nowhere and for a name that cannot be examined.
bool path_exists(const std::string& path);
bool name_exists(const std::string& path);
bool directory_exists(const std::string& path);

// The names in a directory, sorted. Empty if the path does not exist or is not a directory.
std::vector<std::string> names_in(const std::string& directory);

// The path without links, "." and "..", and without a slash at its end. It need not exist. Two paths of one place are
// then equal.
std::string resolved_path(const std::string& path);

// Free bytes for an ordinary user on the file system of `path`, which need not exist yet.
uint64_t free_bytes(const std::string& path);

// ---- reading --------------------------------------------------------------------------------------------------------
// Configurations, models, tokenizers, shards and weights are opened only if they are regular files, and without
// waiting: a pipe without a writer would hang the program, and a device such as /dev/zero has no end.

// A kind of input file, for the errors about it.
struct InputKind {
    const char* name;          // "tokenizer file"
    const char* hint;          // the files to give instead: "a tiktoken file"
    ExitCode code;             // the exit code of every error about such a file
    uint64_t largest_mib = 0;  // MiB; 0: no limit
    bool links = true;         // false: a symbolic link is refused
};

// A regular file that is open for reading. Closes itself.
class InputFile {
public:
    InputFile(const std::string& path, const InputKind& kind);
    ~InputFile();
    InputFile(InputFile&&) = delete;

    int fd() const { return fd_; }
    uint64_t bytes() const { return bytes_; }
    // Reads `bytes` bytes from `offset`, or fewer if the file ends first. Returns the number read.
    size_t read_at(uint64_t offset, void* to, size_t bytes) const;

private:
    [[noreturn]] void fail(const std::string& reason) const;

    const std::string path_;
    const InputKind kind_;
    int fd_ = -1;
    uint64_t bytes_ = 0;
};

// The whole content of an InputFile.
std::string read_input(const std::string& path, const InputKind& kind);

// Waits until a descriptor is ready for `events` of poll(). Returns false if the deadline, a time of
// monotonic_seconds(), passes first.
bool wait_for_event(int fd, short events, double deadline);

// Repeats pread() until it has read `bytes` bytes or the file ends. Returns the number read, or -1 with errno set.
ssize_t pread_fully(int fd, void* to, size_t bytes, uint64_t offset);

}  // namespace llmc
