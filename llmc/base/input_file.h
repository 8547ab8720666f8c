// Opens the files that the program reads: configurations, models, tokenizers, shards, weights. Only regular files are
// opened, and without waiting: a pipe without a writer would hang the program, and a device such as /dev/zero has no
// end.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "llmc/base/error.h"

namespace llmc {

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
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

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

// Repeats pread() until it has read `bytes` bytes or the file ends. Returns the number read, or -1 with errno set.
ssize_t pread_fully(int fd, void* to, size_t bytes, uint64_t offset);

}  // namespace llmc
