// A small state in checkpoints, as several ranks would write it: tensors of a few elements whose values identify their
// place.
#pragma once
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/checkpoint/saver.h"
#include "llmc/device/formats.cuh"
#include "test/helpers.h"

namespace llmc::test {

inline const std::vector<StateTensor> kStateTensors = {{"wte", {7, 5}, {"master", "m", "v"}},
                                                       {"h.0.fc.bias", {3}, {"master", "m", "v"}}};

// The second moment of one tensor is BF16; everything else is FP32.
inline std::string state_dtype(const std::string& tensor, const std::string& part) {
    return tensor == "wte" && part == "v" ? "BF16" : "F32";
}

inline float state_value(const std::string& tensor, const std::string& part, uint64_t i, int64_t step) {
    if (state_dtype(tensor, part) == "BF16") return static_cast<float>(static_cast<uint64_t>(step) % 200 + i);
    return static_cast<float>(step) * 1000 + (tensor == "wte" ? 0.0f : 500.0f) + static_cast<float>(i) +
           (part == "master" ? 0.0f
            : part == "m"    ? 0.25f
                             : 0.5f);
}

// Rank r of n has the r-th part of every tensor. With more ranks than elements, some ranks have none.
inline std::vector<StateSlice> state_slices(int rank, int world) {
    std::vector<StateSlice> slices;
    for (const StateTensor& tensor : kStateTensors) {
        const uint64_t all = tensor.elements(), from = all * rank / world, to = all * (rank + 1) / world;
        for (const std::string& part : tensor.parts)
            if (from < to) slices.push_back({tensor.name, part, from, to - from, state_dtype(tensor.name, part)});
    }
    return slices;
}

inline SliceBytes state_values(const std::vector<StateSlice>& slices, int64_t step) {
    return [slices, step, values = std::vector<char>()](size_t s, uint64_t offset, size_t bytes) mutable {
        const StateSlice& slice = slices[s];
        const size_t size = slice.bytes() / slice.count;
        values.resize(bytes);
        for (size_t at = 0; at < bytes; at += size) {
            const float value = state_value(slice.tensor, slice.part, slice.start + (offset + at) / size, step);
            const bf16 narrow = to_bf16(value);
            std::memcpy(values.data() + at, size == 2 ? static_cast<const void*>(&narrow) : &value, size);
        }
        return static_cast<const void*>(values.data());
    };
}

inline Manifest state_manifest(int64_t step, int world) {
    Manifest m;
    m.run_id = "0123456789abcdef";
    m.step = step;
    m.world = world;
    *m.config = {{"lr", 1e-3}, {"prompt", "caf\xc3\xa9"}};
    *m.versions = {{"git", "test"}};
    *m.run = {{"reports_due", false}};
    *m.state = {{"applied", step}};
    m.tensors = kStateTensors;
    m.chunk_bytes = kChunkBytes;
    return m;
}

// A whole checkpoint of `world` ranks, written by one process.
inline std::string write_checkpoint(const std::string& directory, int64_t step, int world,
                                    FileCalls& calls = system_calls()) {
    begin_checkpoint(calls, directory, step);
    Manifest manifest = state_manifest(step, world);
    for (int rank = 0; rank < world; rank++) {
        const std::vector<StateSlice> slices = state_slices(rank, world);
        manifest.files.push_back(
            write_state_file(calls, unfinished_path(directory, step), rank, slices, state_values(slices, step)));
    }
    commit_checkpoint(calls, directory, step, manifest_text(manifest));
    return checkpoint_path(directory, step);
}

// True if everything in the checkpoint has the values of its step.
inline bool holds_its_state(const CheckpointReader& reader) {
    for (const StateTensor& tensor : kStateTensors)
        for (const std::string& part : tensor.parts) {
            std::vector<float> values(tensor.elements());
            reader.read(tensor.name, part, 0, values.size(), values.data());
            for (uint64_t i = 0; i < values.size(); i++)
                if (values[i] != state_value(tensor.name, part, i, reader.manifest().step)) return false;
        }
    return true;
}

}  // namespace llmc::test
