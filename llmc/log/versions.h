// Versions of this program, its compiler and its libraries, for run.json and --version.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace llmc {

std::string version_number();  // "0.1.0"

// {"git", "1a2b3c4-dirty"}, {"built_for", "sm_90a"} (on the host device its -march), {"compiler", "g++ 12.2.0"}, then
// the libraries. On the host device: OpenBLAS, the processor that its kernels are for, and oneDNN. On a GPU: CUDA at
// compile time, its runtime, the newest CUDA that the driver supports, cuBLASLt, and NCCL if it is loaded.
using Versions = std::vector<std::pair<std::string, std::string>>;
Versions build_and_library_versions();
// The same and train_gpt's own version, as JSON.
nlohmann::ordered_json versions_json();

// Formats a library's number: 13010 with {1000, 10} is "13.1". Public for tests.
std::string dotted_version(int number, const std::vector<int>& units);

}  // namespace llmc
