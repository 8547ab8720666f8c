// manifest.json: what a checkpoint contains, and in which files. llmc/checkpoint/README.md describes the format.
//
// The state of a run is a set of named tensors, each with parts: "master" (weights) and the optimizer's moments
// ("m", "v"). A part is divided into slices, ranges of the flattened tensor, in as many files as there were ranks.
// Slices contain no padding and nothing else that depends on the number of ranks, so any number of ranks can read them.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llmc/checkpoint/state_file.h"

namespace llmc {

struct Manifest {
    std::string run_id;
    int64_t step = 0;
    int world = 1, zero = 0;                  // settings of the run that wrote it
    nlohmann::ordered_json config, versions;  // in the form of run.json
    nlohmann::ordered_json run;               // the run's position in its data and in its output files
    nlohmann::ordered_json state;             // all small state; see train/state.h
    std::vector<StateTensor> tensors;
    uint64_t chunk_bytes = 0;
    std::vector<StateFile> files;

    uint64_t bytes() const;  // size of all files
};

constexpr int kCheckpointVersion = 1;

// A file's entry in the manifest, and its place in the manifest as the next rank's file. Errors begin with `path`.
nlohmann::ordered_json state_file_json(const StateFile& file);
void add_state_file(Manifest& manifest, const std::string& path, const nlohmann::ordered_json& entry);

// The text of manifest.json, which contains its own checksum, and the reverse. Parsing throws Error(checkpoint), which
// begins with `path`, if the text was changed or describes something impossible: a part that is not covered exactly
// once, a path out of the directory, and so on.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& path, const std::string& text);

}  // namespace llmc
