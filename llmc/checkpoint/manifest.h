// The contents of a checkpoint: every rank's file of tensors in slices, and manifest.json, which names the files and
// holds their checksums and the small state. llmc/checkpoint/README.md describes the format.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/files.h"
#include "llmc/base/json.h"

namespace llmc {

// ---- tensors, slices and files --------------------------------------------------------------------------------------
// The state of a run is a set of named tensors, each with parts: "master" (weights) and the optimizer's moments
// ("m", "v"). A part is divided into slices, ranges of the flattened tensor, in as many files as there were ranks.
// Slices contain no padding and nothing else that depends on the number of ranks, so any number of ranks can read them.

// Elements [start, start + count) of a part of a flattened tensor.
struct StateSlice {
    std::string tensor, part;
    uint64_t start = 0, count = 0;
    std::string dtype = "F32";  // or "BF16"; these are safetensors' names
    uint64_t bytes() const { return count * (dtype == "BF16" ? 2 : 4); }
    std::string name() const { return tensor + "." + part; }  // in its file
    bool operator==(const StateSlice&) const = default;
};

// A tensor of the run's state and its parts.
struct StateTensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<std::string> parts;
    uint64_t elements() const;
    // True for a rank's gradient residuals (llmc/comm/reductions.h), which belong to the rank and not to the model.
    bool is_residual() const { return parts == std::vector<std::string>{"residual"}; }
    bool operator==(const StateTensor&) const = default;
};

// The safetensors file of one rank.
struct StateFile {
    std::string name;
    uint64_t bytes = 0;
    std::vector<uint64_t> checksums;  // XXH3-64 of each `chunk_bytes` of the file; the last chunk may be shorter
    std::vector<StateSlice> slices;   // in file order
    bool operator==(const StateFile&) const = default;
};

constexpr const char* kManifestName = "manifest.json";
constexpr uint64_t kChunkBytes = uint64_t{8} << 20;  // for new files

uint64_t checksum(const void* data, size_t bytes);  // XXH3-64
std::string state_file_name(int rank);              // "rank_00003.safetensors"

// Returns `bytes` bytes of a slice's values, starting at byte `offset`. The pointer is valid until the next call.
using SliceBytes = std::function<const void*(size_t slice, uint64_t offset, size_t bytes)>;

// Writes the file and returns when it is on the disk. Its name in `directory` comes from `rank`. Asks for values slice
// by slice in the file's order, FP32 before BF16, in pieces of at most `piece_bytes`.
StateFile write_state_file(FileCalls& calls, const std::string& directory, int rank,
                           const std::vector<StateSlice>& slices, const SliceBytes& values,
                           size_t piece_bytes = kChunkBytes);

// ---- manifest.json --------------------------------------------------------------------------------------------------

struct Manifest {
    std::string run_id;
    int64_t step = 0;
    int world = 1, zero = 0;     // settings of the run that wrote it
    JsonValue config, versions;  // in the form of run.json
    JsonValue run;               // the run's position in its data and in its output files
    JsonValue state;             // all small state; see train/state.h
    std::vector<StateTensor> tensors;
    uint64_t chunk_bytes = 0;
    std::vector<StateFile> files;

    uint64_t bytes() const;  // size of all files
};

constexpr int kCheckpointVersion = 1;

// A file's entry in the manifest, and its place in the manifest as the next rank's file. Errors begin with `path`.
Json state_file_json(const StateFile& file);
void add_state_file(Manifest& manifest, const std::string& path, const Json& entry);

// The text of manifest.json, which contains its own checksum, and the reverse. Parsing throws Error(checkpoint), which
// begins with `path`, if the text was changed or describes something impossible: a part that is not covered exactly
// once, a path out of the directory, and so on.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& path, const std::string& text);

}  // namespace llmc
