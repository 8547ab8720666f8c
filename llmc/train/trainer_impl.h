// The members of Trainer, for files that instantiate it with a block (trainer.cpp does with GPT-2's).
#pragma once
#include <algorithm>

#include "llmc/device/transfer.h"
#include "llmc/train/trainer.h"

namespace llmc {

// What follows from a configuration for its parts.
Sharding sharding_of(const TrainerConfig& config, const ParameterTable& table);
ModelSetup model_setup(const TrainerConfig& config);

template <class Real, template <class> class Block>
Trainer<Real, Block>::Trainer(const TrainerConfig& config, const Comm& comm)
    : config_(config),
      comm_(comm),
      table_(parameter_units(config.model), comm.world()),
      layout_(table_, comm, sharding_of(config, table_)),
      weights_(layout_),
      gradients_(layout_),
      matmul_(config.tf32, config.fast_accumulation, config.fp8_scaling()),
      model_(model_setup(config_), weights_, gradients_, matmul_),
      optimizer_(weights_, gradients_, config.schedule, config.adamw, config.clip, config.loss_scale,
                 config.skip_spikes) {
    matmul_.choose(config.products);
}

template <class Real, template <class> class Block>
Trainer<Real, Block>::~Trainer() {
    if (results_) tear_down([this] { destroy_stream(stream_); });
}

template <class Real, template <class> class Block>
MemoryByKind Trainer<Real, Block>::memory() const {
    MemoryByKind memory;
    memory.weights = weights_.working_bytes() + model_.linear().weight_bytes();
    memory.gradients = config_.forward_only ? 0 : gradients_.bytes();
    memory.optimizer = weights_.master_bytes() + (config_.forward_only ? 0 : optimizer_.moment_bytes());
    memory.activations = model_.activation_bytes() + model_.linear().activation_bytes();
    memory.workspace = model_.workspace_bytes() + (config_.forward_only ? 0 : optimizer_.workspace_bytes()) +
                       Matmul::planned_bytes(operand_type<Real>, model_.linear().shapes(), config_.fp8_scaling());
    return memory;
}

template <class Real, template <class> class Block>
void Trainer<Real, Block>::allocate() {
    stream_ = create_stream();
    results_.emplace();
    matmul_.allocate();
    weights_.allocate(stream_);
    if (!config_.forward_only) gradients_.allocate(stream_);
    model_.allocate(stream_);
    if (!config_.forward_only) optimizer_.allocate(stream_);
}

template <class Real, template <class> class Block>
void Trainer<Real, Block>::initialize(uint64_t seed) {
    model_.initialize(seed, stream_);
    weights_are_set();
}

template <class Real, template <class> class Block>
void Trainer<Real, Block>::set_weight(const std::string& name, const std::vector<float>& values) {
    const ParameterTable::Place place = table_.find(name);
    std::vector<float> padded = values;
    padded.resize(table_.unit(place.unit).tensors[place.tensor].count(), 0.0f);
    weights_.set_tensor(place.unit, place.tensor, padded, stream_);
}

template <class Real, template <class> class Block>
void Trainer<Real, Block>::weights_are_set() {
    model_.prepare_weights(stream_);
}

template <class Real, template <class> class Block>
std::vector<float> Trainer<Real, Block>::get_weight(const std::string& name) const {
    const ParameterTable::Place place = table_.find(name);
    return weights_.get_tensor(place.unit, place.tensor, stream_);
}

template <class Real, template <class> class Block>
void Trainer<Real, Block>::begin_step(bool continues, bool count_losses) {
    results_->begin(continues, stream_);
    matmul_.reset_counts();
    if (fp8()) fp8()->count_losses(count_losses);
    micro_step_ = 0;
}

template <class Real, template <class> class Block>
void Trainer<Real, Block>::micro_step(const int* tokens, const int* targets, float weight) {
    const int64_t total = int64_t{config_.batch} * config_.seq * config_.micro_steps * comm_.world();
    const bool first = micro_step_ == 0, last = ++micro_step_ == config_.micro_steps;
    model_.train_micro_step(tokens, targets, weight / static_cast<float>(total), optimizer_.loss_scale(), first,
                            stream_, last);
}

template <class Real, template <class> class Block>
std::vector<Fp8Fallback> Trainer<Real, Block>::finish_step() {
    if (micro_step_ != config_.micro_steps)
        throw Error(ExitCode::failure,
                    strprintf("a step of %d micro-steps was finished after %d", config_.micro_steps, micro_step_));
    const ProductCounts& all = matmul_.counts();
    const int64_t n = config_.micro_steps;
    products_ = {all.fp8 / n, all.bf16 / n, all.fp32 / n, all.emulated / n};
    if (fp8()) fp8()->check(stream_);
    optimizer_.update(model_.train_loss_sum(), fp8() ? fp8()->bad_flag() : nullptr, stream_);
    if (fp8()) fp8()->finish_step(optimizer_.loss_scale_change(), stream_);
    const std::vector<Fp8Fallback> left = model_.fall_back(stream_);
    model_.prepare_weights(stream_);
    results_->submit(++step_, optimizer_.state(), model_.train_loss_count(), optimizer_.loss_scale(), stream_);
    return left;
}

// Every part of the unit's tensors between two of its elements, all of them held here.
template <class Real, template <class> class Block>
std::vector<DeviceSlice> Trainer<Real, Block>::slices_within(size_t unit, size_t begin, size_t count) {
    std::vector<DeviceSlice> slices;
    const ShardLayout::Part held = layout_.slice(unit);
    float* const masters = weights_.slice(unit).master;
    for (const ParameterTensor& tensor : table_.unit(unit).tensors) {
        const size_t from = std::max(tensor.offset, begin),
                     to = std::min(tensor.offset + tensor.count(), begin + count);
        if (from >= to) continue;
        const auto add = [&](const char* part, float* values) {
            slices.push_back({{tensor.name, part, from - tensor.offset, to - from}, values + (from - held.begin)});
        };
        add("master", masters);
        for (const auto& moment : optimizer_.moments()) add(moment.name, moment.values + layout_.slice_index(unit));
    }
    return slices;
}

template <class Real, template <class> class Block>
std::vector<DeviceSlice> Trainer<Real, Block>::state_slices() {
    std::vector<DeviceSlice> slices;
    for (size_t u = 0; u < table_.units().size(); u++) {
        const ShardLayout::Part share = layout_.share(u);
        const std::vector<DeviceSlice> more = slices_within(u, share.begin, share.count);
        slices.insert(slices.end(), more.begin(), more.end());
    }
    return slices;
}

template <class Real, template <class> class Block>
std::vector<StateTensor> Trainer<Real, Block>::state_tensors() const {
    std::vector<std::string> parts = {"master"};
    for (const auto& moment : optimizer_.moments()) parts.push_back(moment.name);
    std::vector<StateTensor> tensors;
    for (const Unit& unit : table_.units())
        for (const ParameterTensor& tensor : unit.tensors)
            tensors.push_back({tensor.name, {tensor.shape.begin(), tensor.shape.end()}, parts});
    return tensors;
}

template <class Real, template <class> class Block>
TrainerState Trainer<Real, Block>::read_state() {
    TrainerState state;
    state.step = step_;
    state.optimizer = optimizer_.read_state(stream_);
    if (fp8()) state.fp8 = fp8()->read_state(stream_);
    return state;
}

template <class Real, template <class> class Block>
bool Trainer<Real, Block>::restore(const TrainerState& state, const ReadState& read) {
    constexpr size_t kPiece = size_t{4} << 20;  // elements on the host at a time
    std::vector<float> values;
    for (size_t u = 0; u < table_.units().size(); u++) {
        const ShardLayout::Part held = layout_.slice(u);
        for (const DeviceSlice& part : slices_within(u, held.begin, held.count)) {
            const StateSlice& slice = part.slice;
            const size_t in_unit = table_.tensor(table_.find(slice.tensor)).offset + slice.start;
            for (size_t at = 0; at < slice.count; at += kPiece) {
                values.resize(std::min<size_t>(kPiece, slice.count - at));
                read(slice.tensor, slice.part, slice.start + at, values.size(), values.data());
                if (slice.part == "master")
                    weights_.set_master(u, in_unit + at, values.data(), values.size(), stream_);
                else
                    write_through(part.values + at, values.data(), values.size(), stream_);
            }
        }
    }
    step_ = state.step;
    optimizer_.restore(state.optimizer, stream_);
    if (!fp8()) {
        weights_are_set();
        return true;
    }
    if (state.fp8) fp8()->mark_left(state.fp8->left);
    model_.fall_back(stream_);
    weights_are_set();
    // Gradients, and the scales made for them, are multiples of the loss scale.
    const bool same_scale = read_back(optimizer_.loss_scale(), stream_) == state.optimizer.loss_scale;
    return same_scale && state.fp8 && fp8()->restore(*state.fp8, stream_);
}

template <class Real, template <class> class Block>
typename Trainer<Real, Block>::LossSum Trainer<Real, Block>::evaluate(const int* tokens, const int* targets) {
    model_.evaluate(tokens, targets, true, stream_);
    model_.share_evaluation(stream_);
    return {read_back(model_.eval_loss_sum(), stream_),
            static_cast<double>(read_back(model_.eval_loss_count(), stream_))};
}

template <class Real, template <class> class Block>
std::vector<float> Trainer<Real, Block>::token_losses(const int* tokens, const int* targets) {
    model_.evaluate(tokens, targets, true, stream_);
    return read_back(model_.losses(), static_cast<size_t>(config_.batch) * static_cast<size_t>(config_.seq), stream_);
}

}  // namespace llmc
