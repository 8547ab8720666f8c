// A file that appears whole or not at all: written beside its place as PATH.tmp, synced, then renamed.
#pragma once
#include <cstddef>
#include <string>

namespace llmc {

class AtomicFile {
public:
    explicit AtomicFile(const std::string& path);
    ~AtomicFile();  // unfinished: removes PATH.tmp, and what was at PATH before is still there
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(const void* data, size_t bytes);
    void finish();

private:
    [[noreturn]] void fail(const char* what) const;

    std::string path_, temporary_;
    int fd_ = -1;
    bool created_ = false;
};

void write_atomically(const std::string& path, const std::string& text);

}  // namespace llmc
