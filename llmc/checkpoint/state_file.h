// One rank's file of a checkpoint, written from start to end, with the checksums for the manifest.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/files.h"
#include "llmc/checkpoint/state_tensors.h"

namespace llmc {

// Returns `bytes` bytes of a slice's values, starting at byte `offset`. The pointer is valid until the next call.
using SliceBytes = std::function<const void*(size_t slice, uint64_t offset, size_t bytes)>;

// The number of bytes that write_state_file() will write.
uint64_t state_file_bytes(const std::vector<StateSlice>& slices);
// Writes the file and returns when it is on the disk. Its name in `directory` comes from `rank`. Asks for values slice
// by slice in the file's order, FP32 before BF16, in pieces of at most `piece_bytes`.
StateFile write_state_file(FileCalls& calls, const std::string& directory, int rank,
                           const std::vector<StateSlice>& slices, const SliceBytes& values,
                           size_t piece_bytes = kChunkBytes);

}  // namespace llmc
