// A place for a test's files, which is gone when the test is.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace llmc::test {

// Nothing is there until the test makes it.
struct TemporaryDirectory {
    std::filesystem::path path = std::filesystem::temp_directory_path() / ("llmc_test_" + std::to_string(::getpid()));
    TemporaryDirectory() { std::filesystem::remove_all(path); }
    ~TemporaryDirectory() { std::filesystem::remove_all(path); }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    std::string operator/(const char* name) const { return (path / name).string(); }
};

// The whole file; "" where there is none.
inline std::string read_file(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
}

}  // namespace llmc::test
