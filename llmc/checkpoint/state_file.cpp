// Writes a rank's safetensors file in one pass and computes its checksums on the way.
// build: optimized, threads, fuzzed
#include "llmc/checkpoint/state_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "llmc/checkpoint/safetensors.h"

namespace llmc {
namespace {

// Computes the checksums of a file's chunks while it is written.
class ChunkSums {
public:
    void add(const void* data, size_t bytes) {
        const char* from = static_cast<const char*>(data);
        while (bytes > 0) {
            const size_t now = std::min(bytes, static_cast<size_t>(kChunkBytes) - filled_);
            if (filled_ == 0) XXH3_64bits_reset(&state_);
            XXH3_64bits_update(&state_, from, now);
            filled_ += now;
            from += now;
            bytes -= now;
            if (filled_ == kChunkBytes) end_chunk();
        }
    }
    std::vector<uint64_t> finish() {
        if (filled_ > 0) end_chunk();
        return sums_;
    }

private:
    void end_chunk() {
        sums_.push_back(XXH3_64bits_digest(&state_));
        filled_ = 0;
    }
    XXH3_state_t state_{};
    size_t filled_ = 0;
    std::vector<uint64_t> sums_;
};

}  // namespace

StateFile write_state_file(FileCalls& calls, const std::string& directory, int rank,
                           const std::vector<StateSlice>& slices, const SliceBytes& values, size_t piece_bytes) {
    StateFile result{state_file_name(rank), 0, {}, {}};
    const std::string path = directory + "/" + result.name;
    std::vector<TensorSpec> specs;
    for (const StateSlice& slice : slices)
        specs.push_back({slice.name(), slice.dtype, {static_cast<int64_t>(slice.count)}});
    const SafetensorsLayout layout = lay_out_safetensors(path, specs, {});
    NewFile file(calls, path);
    ChunkSums sums;
    std::map<std::string, size_t> index;
    for (size_t s = 0; s < slices.size(); s++) index[slices[s].name()] = s;
    const auto append = [&](const void* data, size_t bytes) {
        sums.add(data, bytes);
        file.append(data, bytes);
    };
    append(layout.head.data(), layout.head.size());
    for (const TensorInfo& tensor : layout.tensors) {
        const size_t s = index.at(tensor.name);
        result.slices.push_back(slices[s]);
        for (uint64_t at = 0, all = slices[s].bytes(); at < all; at += piece_bytes) {
            const size_t bytes = static_cast<size_t>(std::min<uint64_t>(piece_bytes, all - at));
            append(values(s, at, bytes), bytes);
        }
    }
    file.finish();
    result.bytes = file.bytes();
    result.checksums = sums.finish();
    return result;
}

}  // namespace llmc
