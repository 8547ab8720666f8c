// The model with which an FP8 run is validated, and its memory. See trainer.h.
#include "llmc/device/trace.h"
#include "llmc/train/trainer.h"

namespace llmc {

static ModelSetup bf16_setup(ModelSetup setup) {
    setup.precision = Precision::bf16;
    setup.recompute = Recompute::block;  // keeps nothing
    setup.offload_residuals = false;
    setup.forward_only = true;
    return setup;
}

// The units with a working copy of every tensor.
static std::vector<Unit> copied(std::vector<Unit> units) {
    for (Unit& unit : units)
        for (ParameterTensor& tensor : unit.tensors) {
            tensor.codes = CodesFrom::nothing;
            tensor.copied = true;
        }
    return units;
}

static Sharding sharding_for(const ShardLayout& layout) {
    Sharding sharding = layout.sharding();
    if (layout.is_sliced() && !layout.accumulates()) sharding.stage = 3;
    return sharding;
}

template <class Real>
ValidationModel<Real>::ValidationModel(const TrainerConfig& config, Weights<Real>& weights, Gradients& gradients,
                                       Matmul& matmul, Transformer<Real>& trained)
    : setup_(bf16_setup(config)),
      table_(copied(weights.table().units()), weights.layout().comm().world(), weights.table().alignment()),
      layout_(table_, weights.layout().comm(), sharding_for(weights.layout())),
      weights_(layout_, weights, gradients.memory()),
      gradients_(gradients),
      trained_(trained),
      model_(setup_, weights_, gradients, matmul, &trained) {}

template <class Real>
void ValidationModel<Real>::allocate(stream_t stream) {
    weights_.allocate(stream);
    model_.allocate(stream);
}

template <class Real>
void ValidationModel<Real>::begin(stream_t stream) {
    trained_.forget_rows();
    const ProfileRange range("weights for validation", stream);
    weights_.publish_again(stream);
}

template class ValidationModel<float>;
template class ValidationModel<bf16>;

}  // namespace llmc
