// Helpers for the tests of all folders: a directory for their files, whole files as text, and the message of a call
// that fails.
#pragma once
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>

#include "llmc/base/error.h"

namespace llmc::test {

// A new, empty directory, which is removed with everything in it. It is in memory (/dev/shm) if the system has that,
// because many tests wait for the disk.
struct TemporaryDirectory {
    const std::filesystem::path path;

    TemporaryDirectory() : path(make()) {}
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

    std::string operator/(const std::string& name) const { return (path / name).string(); }

private:
    static std::string make() {
        const std::filesystem::path memory = "/dev/shm", disk = std::filesystem::temp_directory_path();
        const bool has_memory = ::access(memory.c_str(), W_OK) == 0;
        std::string name = ((has_memory ? memory : disk) / "llmc_test_XXXXXX").string();
        if (!::mkdtemp(name.data())) throw std::runtime_error("cannot create " + name);
        return name;
    }
};

// While it exists, this process can open no file.
struct NoMoreFiles {
    rlimit before{};

    NoMoreFiles() {
        ::getrlimit(RLIMIT_NOFILE, &before);
        const rlimit none = {0, before.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &none);
    }
    ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before); }
    NoMoreFiles(NoMoreFiles&&) = delete;
};

// The whole file; "" if there is none.
inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Writes the whole file, and returns its path.
inline std::string make_file(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    return path;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The message of the Error that `call` throws; "" if it throws none. An Error with another exit code than `code` gives
// a text that no test expects.
template <class Call>
std::string error_of(const Call& call, std::optional<ExitCode> code = {}) {
    try {
        call();
    } catch (const Error& error) {
        if (!code || error.code() == *code) return error.what();
        return fmt::format("(exit code {})", static_cast<int>(error.code()));
    }
    return "";
}

// The message of an Error with exit code 4.
template <class Call>
std::string checkpoint_error(const Call& call) {
    return error_of(call, ExitCode::checkpoint);
}

}  // namespace llmc::test
