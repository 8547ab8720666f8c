// The state of a trainer between two steps: everything that the next step needs to have the same bits. The large part
// lies in slices on the ranks (Trainer::state_slices), and Staging (staging.h) copies it out. The small part is
// TrainerState, which is the same on every rank and goes into the manifest of a checkpoint.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "llmc/base/json.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/fp8/registry.h"
#include "llmc/optim/state.h"

namespace llmc {

class WeightSource;
template <class Real>
class Trainer;

struct TrainerState {
    int64_t step = 0;  // finished steps
    OptimizerState optimizer;
    std::optional<Fp8Saved> fp8;
    int residuals = 0;  // number of ranks that saved residuals of their gradients (Feedback)
    // ParameterTable::alignment(), which decides where in the residuals each tensor lies. 0 in checkpoints of earlier
    // versions.
    uint64_t residual_alignment = 0;
};

// Floats keep all their bits. Infinities and NaN become text.
Json state_json(const TrainerState& state);
// Throws Error(checkpoint) that names a field that is missing or of the wrong type.
TrainerState state_from_json(const Json& json);

// A slice of the state with its values on the device.
struct DeviceSlice {
    StateSlice slice;
    StateArray values;  // dtype_of() its format is slice.dtype
};

// The name that safetensors files have for values of a format. Those in fp8 are saved as BF16, which has all of them.
inline const char* dtype_of(StateFormat format) { return format == StateFormat::fp32 ? "F32" : "BF16"; }

// Calls visit(unit, tensor, part) with the master weights and each moment of every tensor, as far as they lie in
// `held(unit)` (ShardLayout::slice or share). Parts that hold nothing of a tensor have a count of 0.
using HeldPart = ShardLayout::Part (ShardLayout::*)(size_t unit) const;
template <class Real, class Visit>
void for_each_state(const Trainer<Real>& trainer, HeldPart held, Visit&& visit) {
    const ShardLayout& layout = trainer.layout();
    for (size_t u = 0; u < layout.units(); u++) {
        const ShardLayout::Part slice = layout.slice(u), wanted = (layout.*held)(u);
        const StateArray masters = trainer.weights().slice(u).master;
        for (const ParameterTensor& tensor : layout.table().unit(u).tensors) {
            const ShardLayout::Part part = ShardLayout::overlap(wanted, tensor);
            const uint64_t start = part.count > 0 ? part.begin - tensor.offset : 0;
            visit(u, tensor,
                  DeviceSlice{{tensor.name, "master", start, part.count, dtype_of(masters.format)},
                              masters.from(part.begin - slice.begin)});
            for (const auto& moment : trainer.optimizer().moments().of(u, tensor, part.begin))
                visit(u, tensor,
                      DeviceSlice{{tensor.name, moment.name, start, part.count, dtype_of(moment.values.format)},
                                  moment.values});
        }
    }
}

// Checks every byte of a source, of which each rank takes a part. A collective.
void verify_weights(const WeightSource& weights, const Comm& comm, const std::function<void()>& alive);
// Sets a trainer's weights from a source that is called `name` (checkpoint/weight_source.h). Every rank reads all of
// it; ranks that have read different weights are refused. Calls `alive` for every tensor. A collective.
template <class Real>
void load_weights(
    Trainer<Real>& trainer, const WeightSource& weights, const std::string& name,
    const std::function<void()>& alive = [] {});
// Writes a trainer's weights in Hugging Face's format. A collective: the first rank writes, and only it needs `path`.
// `end_token`: the token between documents, or -1 if it is unknown.
template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path, int end_token);

}  // namespace llmc
