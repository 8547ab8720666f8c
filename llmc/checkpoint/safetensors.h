// The safetensors file format: 8 bytes of header length (little-endian), a JSON header with each tensor's type, shape
// and place, then the tensors' bytes without gaps. Checkpoints, exported models and test fixtures all use it, so the
// usual tools can open every file. The reader trusts nothing: a malformed file throws an Error that says what is wrong.
// The writer never shows a half-written file: it writes to a temporary name and renames at the end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/files.h"

namespace llmc {

// Throws Error(checkpoint) "PATH: PROBLEM", about a file of weights or of a checkpoint.
template <class... Args>
[[noreturn]] void refuse_file(const std::string& path, fmt::format_string<Args...> problem, Args&&... args) {
    throw Error(ExitCode::checkpoint, path + ": " + fmt::format(problem, std::forward<Args>(args)...));
}

// A tensor to write. dtype is the format's own name: "F32", "BF16", "F16", "F64", "I32", "I64", "U8", ...
struct TensorSpec {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
};

// A tensor in a file. begin and end are bytes within the data section.
struct TensorInfo {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;

    uint64_t bytes() const { return end - begin; }
    int64_t elements() const;
};

// Bytes per element, or 0 for an unknown type.
size_t dtype_bytes(const std::string& dtype);

// "(192, 64)", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

// A safetensors file that is open for reading.
class SafetensorsFile {
public:
    // Opens the file and checks its header against its size. Reads no tensor yet.
    explicit SafetensorsFile(const std::string& path);

    const std::string& path() const { return path_; }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
    uint64_t data_start() const { return data_start_; }                  // where the tensors' bytes begin in the file
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    bool contains(const std::string& name) const { return index_.count(name) != 0; }
    const TensorInfo& info(const std::string& name) const;  // throws if there is none

    // Reads a whole tensor; `bytes` must be its size. Several threads may call it at once.
    void read(const std::string& name, void* dst, size_t bytes) const;
    // Reads `bytes` bytes, starting `offset` bytes into the tensor.
    void read_range(const std::string& name, uint64_t offset, void* dst, size_t bytes) const;
    // Read `count` elements from `first` on, or a whole tensor, of F32, BF16, F16, F64 or F8_E4M3 as floats.
    void read_floats(const std::string& name, uint64_t first, size_t count, float* values) const;
    std::vector<float> read_floats(const std::string& name) const;

private:
    std::string read_header();
    void parse_header(const std::string& header);
    void check_layout();

    std::string path_;
    InputFile file_;
    uint64_t data_start_ = 0;
    std::vector<TensorInfo> tensors_;
    std::map<std::string, size_t> index_;
    std::map<std::string, std::string> metadata_;
};

// Places of the tensors in a file that is about to be written.
struct SafetensorsLayout {
    std::string head;                 // length and JSON header: the file's first bytes
    std::vector<TensorInfo> tensors;  // in file order
};
// Wider types come first and the head's length is a multiple of 8, so in a memory map every tensor is aligned to its
// element. `path` is for messages.
SafetensorsLayout lay_out_safetensors(const std::string& path, const std::vector<TensorSpec>& specs,
                                      const std::map<std::string, std::string>& metadata);

// Writes a safetensors file, tensor by tensor.
class SafetensorsWriter {
public:
    // Creates the AtomicFile and writes the header.
    SafetensorsWriter(const std::string& path, const std::vector<TensorSpec>& specs,
                      const std::map<std::string, std::string>& metadata);

    // Writes a whole tensor. Any order is fine, but each tensor must be written exactly once.
    void write(const std::string& name, const void* data, size_t bytes);
    // Every tensor must be written by now. When this returns, the file is at `path` and on the disk.
    void finish();

private:
    struct Slot {
        uint64_t begin = 0, end = 0;
        bool written = false;
    };

    const std::string path_;
    std::optional<AtomicFile> file_;  // empty once it is finished
    uint64_t data_start_ = 0;
    std::map<std::string, Slot> slots_;
};

}  // namespace llmc
