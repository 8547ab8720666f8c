// The state of a trainer between two steps: everything that the next step needs to have the same bits. The large part
// lies in slices on the ranks (Trainer::state_slices). The small part is TrainerState, which is the same on every rank
// and goes into the manifest of a checkpoint.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/checkpoint/manifest.h"
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

// Sets a trainer's weights from a file of another program (checkpoint/weight_source.h). Every rank reads the file.
template <class Real>
void load_weights(Trainer<Real>& trainer, const std::string& path);
// Writes a trainer's weights in Hugging Face's format. A collective: the first rank writes, and only it needs `path`.
// `end_token`: the token between documents, or -1 if it is unknown.
template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path, int end_token);

}  // namespace llmc
