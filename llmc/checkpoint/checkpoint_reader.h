// A complete checkpoint on disk: its manifest, its files once checked, and the values of any range of any tensor.
// Nothing in it is trusted: if data is missing, truncated or changed, Error(checkpoint) names the file, the place and
// the tensor.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llmc/checkpoint/manifest.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/checkpoint/verify.h"

namespace llmc {

class CheckpointReader {
public:
    // Reads only the manifest. A directory called step_N must hold step N.
    explicit CheckpointReader(const std::string& directory);
    // Takes the manifest from another rank, which has read it.
    CheckpointReader(const std::string& directory, const std::string& manifest_text);

    const std::string& directory() const { return directory_; }
    const std::string& manifest_text() const { return text_; }
    const Manifest& manifest() const { return manifest_; }
    const StateTensor& tensor(const std::string& name) const;  // throws if there is none

    // Throws unless one of `parts` equal parts of the checkpoint is as it was written, so that ranks share the work and
    // end at about the same time. Calls `alive` now and then, because this may take long.
    using Alive = std::function<void()>;
    void verify(
        Verify how, size_t part = 0, size_t parts = 1, const Alive& alive = [] {}) const;

    // Reads elements [start, start + count) of a flattened part into FP32, from all files that hold some of them,
    // whether those store FP32 or BF16.
    void read(const std::string& tensor, const std::string& part, uint64_t start, uint64_t count, float* values) const;

private:
    struct Place {
        size_t file;
        uint64_t start, count;
    };
    std::string path(const StateFile& file) const { return directory_ + "/" + file.name; }
    uint64_t size_of(const StateFile& file) const;  // throws if it is not a regular file
    const SafetensorsFile& open(size_t file) const;
    void check_chunks(const StateFile& file, size_t first, size_t count, const Alive& alive) const;
    std::string tensor_at(const SafetensorsFile& opened, uint64_t begin, uint64_t end) const;

    const std::string directory_;
    std::string text_;
    Manifest manifest_;
    std::map<std::string, std::vector<Place>> places_;            // by the slice's name, sorted by start
    mutable std::vector<std::unique_ptr<SafetensorsFile>> open_;  // by file, opened on first use
    mutable size_t open_files_ = 0;
};

}  // namespace llmc
