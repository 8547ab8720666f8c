// Shared by the checkpoint tests: a temporary folder, and the error of a call.
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>

#include "llmc/base/error.h"

namespace llmc::test {

class TemporaryFolder {
public:
    // In memory if the system has such a place, because the tests often wait for the disk.
    TemporaryFolder() {
        const std::filesystem::path memory = "/dev/shm", disk = std::filesystem::temp_directory_path();
        const bool has_memory = ::access(memory.c_str(), W_OK) == 0;
        std::string name = ((has_memory ? memory : disk) / "llmc_test_XXXXXX").string();
        if (!::mkdtemp(name.data())) throw std::runtime_error("cannot create " + name);
        path_ = name;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    std::string file(const std::string& name) const { return (path_ / name).string(); }

private:
    std::filesystem::path path_;
};

// The message of the llmc::Error that `call` throws, if it has that exit code. Otherwise a text that no test expects.
inline std::string error_of(const std::function<void()>& call, ExitCode code = ExitCode::checkpoint) {
    try {
        call();
    } catch (const Error& error) {
        if (error.code() == code) return error.what();
        return strprintf("<exit code %d>", static_cast<int>(error.code()));
    } catch (const std::exception& error) {
        return std::string("<another exception>");
    }
    return "<no error>";
}

inline bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace llmc::test
