// manifest.json: what a checkpoint holds, and which file has what. llmc/checkpoint/README.md describes the format.
//
// The state of a run is a set of tensors by name, each with parts: "master" (FP32 weights) and what the optimizer keeps
// of them ("m", "v"). A part lies in slices, ranges of the flattened tensor, in as many files as there were ranks. No
// padding, and nothing else that depends on how many ranks there were, is in a slice, so any number of ranks can read
// it.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llmc/checkpoint/state_tensors.h"

namespace llmc {

struct Manifest {
    std::string run_id;
    int64_t step = 0;
    int world = 1, zero = 0;                  // of the run that wrote it
    nlohmann::ordered_json config, versions;  // as run.json has them
    nlohmann::ordered_json run;               // where it was: in its data, in the files it writes
    nlohmann::ordered_json state;             // everything small; see train/state.h
    std::vector<StateTensor> tensors;
    uint64_t chunk_bytes = 0;
    std::vector<StateFile> files;

    uint64_t bytes() const;  // of all files
};

constexpr int kCheckpointVersion = 1;

// The text of manifest.json, which carries a checksum of itself; and back. A text that is not what was written, or
// describes what cannot be (a part that is not covered exactly once, a path out of the directory, ...), is
// Error(checkpoint), which starts with `path`.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& path, const std::string& text);

}  // namespace llmc
