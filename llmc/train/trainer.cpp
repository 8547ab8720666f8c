#include "llmc/train/trainer.h"

#include <array>

#include "llmc/device/transfer.h"

namespace llmc {
namespace {

Sharding sharding_of(const TrainerConfig& config, const ParameterTable& table) {
    Sharding sharding = config.sharding;
    if (config.fp8 && config.fp8_scaling() == Fp8Scaling::tensor)
        sharding.fp8 = fp8_tensors_of(table, config.model, Fp8Layers(config.fp8_layers, config.model.layers));
    return sharding;
}

std::unique_ptr<Fp8Tensors> fp8_of(const TrainerConfig& config, const Comm& comm) {
    if (!config.fp8) return nullptr;
    return std::make_unique<Fp8Tensors>(config.model, *config.fp8, Fp8Layers(config.fp8_layers, config.model.layers),
                                        config.batch * config.seq, config.recompute, comm, config.sharding.stage);
}

}  // namespace

size_t MemoryByKind::operator[](MemoryKind kind) const {
    return std::array{weights, gradients, optimizer, activations, workspace}[static_cast<size_t>(kind)];
}

template <class Real>
Trainer<Real>::Trainer(const TrainerConfig& config, const Comm& comm)
    : config_(config),
      comm_(comm),
      table_(gpt2_units(config.model), comm.world()),
      sharding_(sharding_of(config, table_)),
      parameters_(table_, comm, sharding_),
      matmul_(config.tf32, config.fast_accumulation, config.fp8_scaling()),
      fp8_(fp8_of(config, comm)),
      model_(config.model, config.batch, config.seq, config.recompute, parameters_, matmul_, fp8_.get()),
      optimizer_(parameters_, config.schedule, config.adamw, config.clip, config.loss_scale, config.skip_spikes) {}

template <class Real>
Trainer<Real>::~Trainer() {
    if (results_) tear_down([this] { destroy_stream(stream_); });
}

template <class Real>
MemoryByKind Trainer<Real>::memory() const {
    MemoryByKind memory;
    memory.weights = parameters_.weight_bytes() + (fp8_ ? fp8_->weight_bytes() : 0);
    memory.gradients = parameters_.gradient_bytes();
    memory.optimizer = parameters_.optimizer_bytes();
    memory.activations = model_.activation_bytes() + (fp8_ ? fp8_->activation_bytes() : 0);
    memory.workspace = model_.workspace_bytes() + optimizer_.workspace_bytes() +
                       Matmul::planned_bytes(operand_type<Real>, model_.linear_shapes(), config_.fp8_scaling());
    return memory;
}

template <class Real>
void Trainer<Real>::allocate() {
    stream_ = create_stream();
    results_.emplace();
    matmul_.allocate();
    parameters_.allocate(stream_);
    model_.allocate();
    optimizer_.allocate(stream_);
    if (fp8_) fp8_->allocate(stream_);
}

template <class Real>
void Trainer<Real>::initialize(uint64_t seed) {
    model_.initialize(seed, stream_);
    weights_are_set();
}

template <class Real>
void Trainer<Real>::set_weight(const std::string& name, const std::vector<float>& values) {
    const ParameterTable::Place place = table_.find(name);
    std::vector<float> padded = values;
    padded.resize(table_.unit(place.unit).tensors[place.tensor].count(), 0.0f);
    parameters_.set_tensor(place.unit, place.tensor, padded, stream_);
}

template <class Real>
void Trainer<Real>::weights_are_set() {
    model_.prepare_weights(stream_);
}

template <class Real>
std::vector<float> Trainer<Real>::get_weight(const std::string& name) const {
    const ParameterTable::Place place = table_.find(name);
    return parameters_.get_tensor(place.unit, place.tensor, stream_);
}

template <class Real>
void Trainer<Real>::begin_step(bool continues, bool count_losses) {
    results_->begin(continues, stream_);
    matmul_.reset_counts();
    if (fp8_) fp8_->count_losses(count_losses);
    micro_step_ = 0;
}

template <class Real>
void Trainer<Real>::micro_step(const int* tokens, const int* targets, float weight) {
    const int64_t total = int64_t{config_.batch} * config_.seq * config_.micro_steps * comm_.world();
    const bool first = micro_step_ == 0, last = ++micro_step_ == config_.micro_steps;
    model_.train_micro_step(tokens, targets, weight / static_cast<float>(total), optimizer_.loss_scale(), first, stream_,
                            last);
}

template <class Real>
std::vector<Fp8Loss> Trainer<Real>::finish_step() {
    if (micro_step_ != config_.micro_steps)
        throw Error(ExitCode::failure,
                    strprintf("a step of %d micro-steps was finished after %d", config_.micro_steps, micro_step_));
    const ProductCounts& all = matmul_.counts();
    const int64_t n = config_.micro_steps;
    products_ = {all.fp8 / n, all.bf16 / n, all.fp32 / n, all.emulated / n};
    if (fp8_) fp8_->check(stream_);
    optimizer_.update(model_.train_loss_sum(), fp8_ ? fp8_->bad_flag() : nullptr, stream_);
    if (fp8_) fp8_->finish_step(optimizer_.loss_scale_change(), stream_);
    const std::vector<Fp8Loss> left = model_.fall_back(stream_);
    model_.prepare_weights(stream_);
    results_->submit(++step_, optimizer_.state(), model_.train_loss_count(), optimizer_.loss_scale(), stream_);
    return left;
}

template <class Real>
int64_t Trainer<Real>::expected_fp8_products() const {
    if (!fp8_) return 0;
    int64_t expected = 3 * (fp8_->layer_count() + (fp8_->has_head() ? model_.head_chunks() : 0));
    if (config_.recompute == Recompute::block)
        for (int l = 0; l < config_.model.layers; l++)
            for (const BlockLinear linear : {BlockLinear::qkv, BlockLinear::attn_proj, BlockLinear::fc})
                expected += fp8_->is_fp8(l, linear);
    return expected;
}

template <class Real>
typename Trainer<Real>::LossSum Trainer<Real>::evaluate(const int* tokens, const int* targets) {
    model_.evaluate(tokens, targets, true, stream_);
    model_.share_evaluation(stream_);
    return {read_back(model_.eval_loss_sum(), stream_),
            static_cast<double>(read_back(model_.eval_loss_count(), stream_))};
}

template class Trainer<float>;
template class Trainer<bf16>;

}  // namespace llmc
