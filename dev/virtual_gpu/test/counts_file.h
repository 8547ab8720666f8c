// A file for the counts of child processes (VIRTUAL_GPU_COUNTS).
#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dev/virtual_gpu/test/child.h"

namespace virtual_gpu::test {

class CountsFile {
public:
    CountsFile() : path_(std::filesystem::temp_directory_path() / "virtual_gpu_counts_XXXXXX") {
        const int file = mkstemp(path_.data());
        REQUIRE(file >= 0);
        close(file);
    }
    ~CountsFile() { std::remove(path_.c_str()); }
    CountsFile(const CountsFile&) = delete;
    CountsFile& operator=(const CountsFile&) = delete;

    const std::string& path() const { return path_; }

    // The lines about "kernel", "product", "copy", ...; at least one must exist.
    std::vector<nlohmann::json> lines(const char* kind) const {
        std::ifstream file(path_);
        std::vector<nlohmann::json> found;
        for (std::string line; std::getline(file, line);)
            if (nlohmann::json j = nlohmann::json::parse(line); j.contains(kind)) found.push_back(j);
        REQUIRE(!found.empty());
        return found;
    }

private:
    std::string path_;
};

// The line about the last kernel that a child process writes which runs this program's test case of that name.
inline nlohmann::json counts_of(const std::string& name, Variables variables = {{"VIRTUAL_GPU_THREADS", "1"}}) {
    const CountsFile file;
    variables["VIRTUAL_GPU_COUNTS"] = file.path();
    expect_cases(name, variables);
    nlohmann::json found = file.lines("kernel").back();
    found.erase("seconds");
    for (nlohmann::json& shape : found["shapes"]) shape.erase("seconds");
    return found;
}

}  // namespace virtual_gpu::test
