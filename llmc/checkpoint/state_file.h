// One rank's file of a checkpoint, written from its start to its end, with the checksums that go into the manifest.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/files.h"
#include "llmc/checkpoint/state_tensors.h"

namespace llmc {

// What a slice's values are: `bytes` of them from byte `offset` on, valid until the next call.
using SliceBytes = std::function<const void*(size_t slice, uint64_t offset, size_t bytes)>;

// Bytes that write_state_file() will write.
uint64_t state_file_bytes(const std::vector<StateSlice>& slices);
// Returns with the file on the disk. `rank` gives it its name in `directory`. Values are asked for slice after slice
// in the file's order, FP32 before BF16, in pieces of at most `piece_bytes`.
StateFile write_state_file(FileCalls& calls, const std::string& directory, int rank,
                           const std::vector<StateSlice>& slices, const SliceBytes& values,
                           size_t piece_bytes = kChunkBytes);

}  // namespace llmc
