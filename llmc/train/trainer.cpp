#include <array>

#include "llmc/train/trainer_impl.h"

namespace llmc {
namespace {

Fp8Layers fp8_layers_of(const TrainerConfig& config) {
    if (!config.fp8) return {};
    return {config.fp8_layers, config.model.layers, linear_names(config.model)};
}

}  // namespace

Sharding sharding_of(const TrainerConfig& config, const ParameterTable& table) {
    Sharding sharding = config.sharding;
    if (!config.fp8 || config.fp8_scaling() != Fp8Scaling::tensor) return sharding;
    const Fp8Layers layers = fp8_layers_of(config);
    for (const Unit& unit : table.units()) {
        sharding.fp8.emplace_back();
        for (const ParameterTensor& tensor : unit.tensors)  // "h.3.fc.weight" of layer "h.3.fc"
            sharding.fp8.back().push_back(tensor.decay && layers.is_fp8(tensor.name.substr(0, tensor.name.rfind('.'))));
    }
    return sharding;
}

ModelSetup model_setup(const TrainerConfig& config) {
    return {config.model,
            config.batch,
            config.seq,
            config.recompute,
            config.fp8 ? &*config.fp8 : nullptr,
            fp8_layers_of(config),
            config.logits_bytes,
            config.kernels};
}

// At most: of each tensor master, m, v, two of the working copy, the gradient and two of its sums; of each unit its
// output; the losses and their sum; and the head's codes in FP8.
size_t checksums_of_step(const ParameterTable& table) {
    size_t tensors = 0;
    for (const Unit& unit : table.units()) tensors += unit.tensors.size();
    return 8 * tensors + table.units().size() + 4;
}

size_t MemoryByKind::operator[](MemoryKind kind) const {
    return std::array{weights, gradients, optimizer, activations, workspace}[static_cast<size_t>(kind)];
}

template class Trainer<float, Gpt2Block>;
template class Trainer<bf16, Gpt2Block>;

}  // namespace llmc
