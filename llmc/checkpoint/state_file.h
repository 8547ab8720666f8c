// The building blocks of a checkpoint (manifest.h): tensors, their slices, and the files that contain them. Writes one
// rank's file from start to end, with the checksums for the manifest.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/files.h"

namespace llmc {

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
    // True for a rank's gradient residuals (llmc/comm/pieces.h), which belong to the rank and not to the model.
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

}  // namespace llmc
