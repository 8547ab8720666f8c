// What a trainer is in the middle of: everything that has to be remembered for the next step to have the same bits. The
// large part lies in slices on the ranks (Trainer::state_slices); the small part is this, the same on every rank, and
// goes into the manifest of a checkpoint.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/checkpoint/state_tensors.h"
#include "llmc/fp8/registry.h"
#include "llmc/optim/optimizer.h"

namespace llmc {

struct TrainerState {
    int64_t step = 0;  // finished
    OptimizerState optimizer;
    std::optional<Fp8Saved> fp8;
    int residuals = 0;  // of so many ranks (Feedback), a set each
};

// Floats keep all their bits; those that are not finite become text.
nlohmann::ordered_json state_json(const TrainerState& state);
// What is missing or of another kind is Error(checkpoint) that says so.
TrainerState state_from_json(const nlohmann::ordered_json& json);

// Values of a slice on the device.
struct DeviceSlice {
    StateSlice slice;
    void* values;  // of the slice's dtype
};

}  // namespace llmc
