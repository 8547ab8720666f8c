// The state of a trainer between two steps: everything that the next step needs to have the same bits. The large part
// lies in slices on the ranks (Trainer::state_slices), and Staging copies it out. The small part is TrainerState, which
// is the same on every rank and goes into the manifest of a checkpoint.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/checkpoint/manifest.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/checkpoint/weight_source.h"
#include "llmc/device/owned.h"
#include "llmc/fp8/registry.h"
#include "llmc/optim/optimizer.h"

namespace llmc {

template <class Real>
class Trainer;

struct TrainerState {
    int64_t step = 0;  // finished steps
    OptimizerState optimizer;
    std::optional<Fp8Saved> fp8;
    int residuals = 0;  // number of ranks that saved residuals of their gradients (Feedback)
};

// Floats keep all their bits. Infinities and NaN become text.
nlohmann::ordered_json state_json(const TrainerState& state);
// Throws Error(checkpoint) that names a field that is missing or of the wrong type.
TrainerState state_from_json(const nlohmann::ordered_json& json);

// A slice of the state with its values on the device.
struct DeviceSlice {
    StateSlice slice;
    StateArray values;  // dtype_of() its format is slice.dtype
};

// The name that safetensors files have for values of a format. Those in fp8 are saved as BF16, which has all of them.
inline const char* dtype_of(StateFormat format) { return format == StateFormat::fp32 ? "F32" : "BF16"; }

// Sets a trainer's weights from a source that is called `name` (checkpoint/weight_source.h). Every rank reads all of
// it; ranks that have read different weights are refused. A collective.
template <class Real>
void load_weights(Trainer<Real>& trainer, const WeightSource& weights, const std::string& name);
// Writes a trainer's weights in Hugging Face's format. A collective: the first rank writes, and only it needs `path`.
// `end_token`: the token between documents, or -1 if it is unknown.
template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path, int end_token);

// ---- copies of the state outside of the device (staging.cpp) --------------------------------------------------------

// Copies a rank's state out of the device, so that training continues while a checkpoint is written. If there is no
// memory for the copy, values are read from the device piece by piece while training waits.
class Staging {
public:
    // `slices`: Trainer::state_slices(). `local`: a directory on a local disk that is used instead of memory, or "".
    // Throws if no file can be created there. `memory`: bytes of host memory that may be used.
    Staging(std::vector<DeviceSlice> slices, const std::string& local, size_t memory);
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    const std::vector<StateSlice>& slices() const { return names_; }
    // True if the device is no longer needed after take().
    bool is_apart() const { return memory_ || !local_.empty(); }
    // Why there is no copy, so that the device is still needed; otherwise "".
    const std::string& note() const { return note_; }

    // The device's current values; waits for it. Valid until the next take().
    SliceBytes take(stream_t stream);
    // Checksums of a file with these values, or empty if they are not known yet.
    const std::vector<uint64_t>& checksums() const { return checksums_; }

private:
    SliceBytes from_device(stream_t stream);
    SliceBytes from_memory(stream_t stream);
    SliceBytes from_local_file(stream_t stream);
    const char* narrowed(const e4m3* codes, const float* scales, uint64_t offset, size_t bytes);

    const std::vector<DeviceSlice> slices_;
    std::vector<StateSlice> names_;
    std::string local_, note_;
    size_t bytes_ = 0;
    Pinned<char> memory_;       // all slices one after the other
    std::vector<char> buffer_;  // one piece
    std::unique_ptr<SafetensorsFile> local_file_;
    std::vector<uint64_t> checksums_;
};

// Bytes that the copy of a slice takes in host memory.
size_t staged_bytes(const DeviceSlice& part);

// Bytes of host memory that this process could still allocate on this machine or in its control group.
size_t available_host_memory();

}  // namespace llmc
