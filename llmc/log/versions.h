// What this program was built from and what it runs on: for run.json, so that a run can be explained later, and for
// --version.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace llmc {

std::string version_number();  // "0.1.0"

// {"git", "1a2b3c4-dirty"}, {"built_for", "sm_90a"} (on the host device a -march), {"compiler", "g++ 12.2.0"}, then of
// the libraries: OpenBLAS and the processor it has chosen its kernels for on the host device; CUDA as compiled, its
// runtime, what the driver takes, cuBLASLt, and NCCL where it is in use, on a GPU. What is not there is left out.
using Versions = std::vector<std::pair<std::string, std::string>>;
Versions build_and_library_versions();
// The same and train_gpt's own, by name.
nlohmann::ordered_json versions_json();

// For tests. A library's number as people write it: 13010 with {1000, 10} is "13.1".
std::string dotted_version(int number, const std::vector<int>& units);

}  // namespace llmc
