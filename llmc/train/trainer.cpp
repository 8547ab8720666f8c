// The order of a training step, and the state that checkpoints save and restore. See trainer.h.
#include "llmc/train/trainer.h"

#include <algorithm>

#include "llmc/device/transfer.h"
#include "llmc/kernels/clip.h"
#include "llmc/shard/state_values.h"
#include "llmc/train/signals.h"
#include "llmc/train/staging.h"
#include "llmc/train/step_results.h"
#include "llmc/train/verification.h"

namespace llmc {

static std::vector<Unit> units_of(const TrainerConfig& config, const Comm& comm) {
    std::vector<Unit> units = parameter_units(config.model);
    if (config.is_fp8()) {
        const Fp8Layers layers =
            fp8_layers(config.fp8_layers, config.model.layers, linear_names(config.model), config.fp8_scaling());
        const bool sliced = comm.world() > 1 && config.sharding.stage > 0;
        const bool masters_are_copies = config.optimizer.masters == StateFormat::bf16 && !sliced;
        choose_fp8_weights(units, layers, config.fp8_scaling() == Fp8Scaling::mx,
                           masters_are_copies || config.fp8.layers_may_leave());
    }
    return units;
}

constexpr size_t kPiece = size_t{4} << 20;  // elements read into host memory at a time when state is restored

// Name in the state of a rank's residuals: what its gradient casts have lost, unit after unit.
static std::string residuals_of(int rank) { return fmt::format("gradients.{}", rank); }

// Calls write(at, values) with all values of the slice, kPiece elements at a time.
template <class ReadState, class Write>
static void read_in_pieces(const StateSlice& slice, const ReadState& read, Write&& write) {
    std::vector<float> values;
    for (size_t at = 0; at < slice.count; at += kPiece) {
        values.resize(std::min<size_t>(kPiece, slice.count - at));
        read(slice.tensor, slice.part, slice.start + at, values.size(), values.data());
        write(at, values);
    }
}

template <class ReadState>
static void read_part(const DeviceSlice& part, const ReadState& read, stream_t stream) {
    read_in_pieces(part.slice, read, [&](size_t at, const std::vector<float>& values) {
        write_state(part.values.from(at), values.data(), values.size(), stream);
    });
}

template <class Real>
Trainer<Real>::Trainer(const TrainerConfig& config, const Comm& comm)
    : config_(config),
      comm_(comm),
      // Groups that share a scale must not reach from one tensor into the next.
      table_(units_of(config, comm), comm.world(),
             config.optimizer.adam_moments == StateFormat::fp8 ? kStateGroup : ParameterTable::kTensorAlignment),
      layout_(table_, comm, config.sharding),
      weights_(layout_, config.optimizer.masters),
      gradients_(layout_),
      matmul_(config.tf32, config.fast_accumulation, config.fp8_scaling()),
      model_(config_, weights_, gradients_, matmul_),
      optimizer_(config_, weights_, gradients_, &matmul_) {
    matmul_.choose(config.products);
    if (config.validates_in_bf16()) validation_model_.emplace(config_, weights_, gradients_, matmul_, model_);
    if (config.signals_every > 0) signals_ = std::make_unique<Signals<Real>>(*this);
    if (signals_ || config.qk_clip > 0) model_.plan_max_logits();
    if (config.verify_every > 0) verification_ = std::make_unique<Verification<Real>>(*this);
}

template <class Real>
Trainer<Real>::~Trainer() = default;

// Shapes of all products: those of the model's layers and of Muon.
template <class Real>
std::vector<Matmul::LinearShape> Trainer<Real>::product_shapes() const {
    std::vector<Matmul::LinearShape> shapes = model_.linear().shapes();
    const auto add = [&](const std::vector<Matmul::LinearShape>& more) {
        shapes.insert(shapes.end(), more.begin(), more.end());
    };
    if (validation_model_) add(validation_model_->model().linear().shapes());
    if (optimizer_.muon() && !config_.forward_only) add(optimizer_.muon()->shapes());
    return shapes;
}

template <class Real>
ProductUses Trainer<Real>::kinds_of_products() const {
    ProductUses products = model_.linear().products(config_.batch * config_.seq);
    if (const Muon<Real>* muon = optimizer_.muon())
        for (const Product& product : muon->products()) products[product].insert(word_of(config_.optimizer.kind));
    return products;
}

template <class Real>
MemoryByKind Trainer<Real>::memory(std::optional<int> compute_capability) const {
    const Fp8Scaling scaling = config_.fp8_scaling();
    MemoryByKind memory;
    memory.weights = weights_.working_bytes() + model_.linear().weight_bytes();
    memory.gradients = config_.forward_only ? 0 : gradients_.bytes();
    (layout_.sharding().offload_state ? memory.offloaded : memory.optimizer) =
        weights_.master_bytes() + (config_.forward_only ? 0 : optimizer_.moment_bytes());
    if (!config_.forward_only) memory.optimizer += optimizer_.second_moment_bytes();
    memory.offloaded += model_.offloaded().host_bytes();
    memory.activations = model_.activation_bytes() + model_.linear().activation_bytes();
    memory.workspace = model_.workspace_bytes() + (config_.forward_only ? 0 : optimizer_.workspace_bytes()) +
                       (compute_capability ? Matmul::planned_bytes(product_shapes(), scaling, *compute_capability)
                                           : Matmul::planned_bytes(product_shapes(), scaling));
    if (verification_) memory.workspace += verification_->bytes();
    if (signals_) memory.workspace += signals_->bytes();
    memory.staging += gradients_.residual_count() * sizeof(bf16);
    for_each_state(*this, &ShardLayout::share, [&](size_t, const ParameterTensor&, const DeviceSlice& part) {
        memory.staging += staged_bytes(part);
    });
    return memory;
}

template <class Real>
void Trainer<Real>::allocate() {
    stream_ = create_stream();
    results_ = std::make_unique<StepResults>(comm_.waits());
    weights_.allocate(stream_);
    if (!config_.forward_only) gradients_.allocate(stream_);
    model_.allocate(stream_);
    if (validation_model_) validation_model_->allocate(stream_);
    if (!config_.forward_only) {
        optimizer_.allocate(stream_);
        gradients_.feed_back(optimizer_.loss_scale(), &optimizer_.state()->consecutive_skips);
        if (fp8()) fp8()->dither_weights(&optimizer_.state()->applied);
    }
    if (verification_) verification_->allocate();
    if (signals_) signals_->allocate();
    matmul_.allocate();  // last, because it can work with less
}

template <class Real>
void Trainer<Real>::set_weight(const std::string& name, const std::vector<float>& values) {
    const ParameterTable::Place place = table_.find(name);
    std::vector<float> padded = values;
    padded.resize(table_.unit(place.unit).tensors[place.tensor].count(), 0.0f);
    weights_.set_tensor(place.unit, place.tensor, padded, stream_);
}

template <class Real>
void Trainer<Real>::weights_are_set() {
    optimizer_.ring().state_is_set(stream_);
    model_.prepare_weights(stream_);
    if (verification_) verification_->forget_state();
}

template <class Real>
std::vector<float> Trainer<Real>::get_weight(const std::string& name) const {
    const ParameterTable::Place place = table_.find(name);
    return weights_.get_tensor(place.unit, place.tensor, stream_);
}

template <class Real>
void Trainer<Real>::begin_step(const StepKind& kind) {
    kind_ = kind;
    if (kind_.micro_steps == 0) kind_.micro_steps = config_.micro_steps;
    micro_step_ = 0;
    gradients_.begin_step(mix64(config_.optimizer.rounding(0, 0).key + static_cast<uint64_t>(step_)));
    results_->begin(kind.continues, stream_);
    if (kind.batch_changes) optimizer_.forget_spikes(stream_);
    matmul_.reset_counts();
    if (fp8()) fp8()->count_losses(kind.count_losses);
    if (verification_) verification_->prepare(step_ + 1);
}

template <class Real>
void Trainer<Real>::micro_step(const MicroBatch& batch, float weight) {
    const int64_t total = int64_t{config_.batch} * config_.seq * kind_.micro_steps * comm_.world();
    const bool first = micro_step_ == 0, last = ++micro_step_ == kind_.micro_steps;
    const bool measures_logits = config_.qk_clip > 0 || (signals_ && signals_->is_due(step_ + 1));
    const auto run = [&] {
        model_.train_micro_step(batch,
                                {.loss_weight = weight / static_cast<float>(total),
                                 .loss_scale = optimizer_.loss_scale(),
                                 .first = first,
                                 .last = last,
                                 .length = kind_.length,
                                 .measures_logits = measures_logits},
                                stream_);
    };
    const bool verified = first && verification_ && verification_->is_due(step_ + 1);
    if (first && signals_) signals_->before_micro_step(step_ + 1, kind_.micro_steps, verified);
    if (verified)
        verification_->run_twice(run);
    else
        run();
    if (first && signals_) signals_->after_micro_step();
}

template <class Real>
std::vector<Fp8Fallback> Trainer<Real>::finish_step() {
    if (micro_step_ != kind_.micro_steps)
        throw Error(ExitCode::failure, "a step of {} micro-steps was finished after {}", kind_.micro_steps,
                    micro_step_);
    const ProductCounts& all = matmul_.counts();
    const int64_t n = kind_.micro_steps;
    const ProductCounts products = {all.fp8 / n, all.bf16 / n, all.fp32 / n, all.emulated / n};
    if (fp8()) fp8()->check(stream_);
    if (verification_) verification_->before_optimizer(step_ + 1);
    if (signals_) signals_->before_optimizer(step_ + 1);
    optimizer_.update(model_.train_loss_sum(), fp8() ? fp8()->bad_flag() : nullptr, stream_);
    if (config_.qk_clip > 0) clip_logits();
    if (signals_) signals_->after_optimizer(step_ + 1);
    optimizer_.average(stream_);
    if (fp8()) fp8()->finish_step(optimizer_.loss_scale_change(), stream_);
    const std::vector<Fp8Fallback> left = model_.linear().leave_fp8(step_ + 1, stream_);
    model_.prepare_weights(stream_);
    results_->submit(++step_, optimizer_.state(), model_.train_loss_count(), optimizer_.loss_scale(), stream_);
    submitted().products = products;
    if (verification_) verification_->prepare(step_ + 1);
    return left;
}

// Scales this rank's slices of the weights and biases of queries and keys (kernels/clip.h).
template <class Real>
void Trainer<Real>::clip_logits() {
    const ProfileRange range("QK-clip", stream_);
    const AttentionHeads heads = config_.model.attention_heads(0);
    for (int l = 0; l < config_.model.layers; l++)
        for (const char* name : {"qkv.weight", "qkv.bias"}) {
            const std::optional<ParameterTable::Place> place = table_.look_up(block_prefix(l) + name);
            if (!place) continue;
            const auto& [unit, number] = *place;
            const ParameterTensor& tensor = table_.tensor(*place);
            const ShardLayout::Part slice = layout_.slice(unit), part = ShardLayout::overlap(slice, tensor);
            if (part.count == 0) continue;
            Fp8State* const fp8 = weights_.fp8_state(unit, number);
            if (fp8) set_bytes(&fp8->amax_now, 0, sizeof(float), stream_);  // from the weights before they were scaled
            const size_t columns = tensor.shape.size() == 2 ? static_cast<size_t>(tensor.shape[1]) : 1;
            optimizer_.ring().update(
                {weights_.slice(unit, part.begin - slice.begin).master}, part.count, stream_,
                [&](const StateRing::Slice& piece) {
                    const size_t at = part.begin + piece.begin;
                    StateRounding rounding = config_.optimizer.rounding(unit, at);
                    rounding.key ^= kGolden64;  // so that the random bits differ from those of the optimizer's rounding
                    qk_clip(piece[0], weights_.slice(unit, at - slice.begin).working, fp8,
                            model_.max_logits() + l * heads.NH, heads, columns, at - tensor.offset, piece.count,
                            static_cast<float>(config_.qk_clip), optimizer_.state(), stream_, rounding);
                });
        }
    optimizer_.ring().finish(stream_);
}

template <class Real>
StepRecord& Trainer<Real>::submitted() {
    return results_->submitted();
}

template <class Real>
std::optional<StepRecord> Trainer<Real>::take_result(int leave) {
    std::optional<StepRecord> record = results_->take(leave);
    if (record && signals_) signals_->take(*record);
    if (record && verification_) record->verified = verification_->take(record->step);
    return record;
}

// ---- state ----------------------------------------------------------------------------------------------------------

template <class Real>
std::vector<DeviceSlice> Trainer<Real>::second_moments() const {
    std::vector<DeviceSlice> slices;
    if (!optimizer_.muon()) return slices;
    for (const auto& moment : optimizer_.muon()->second_moments())
        slices.push_back({{moment.matrix, "second", 0, moment.lines}, moment.values});
    return slices;
}

template <class Real>
std::vector<DeviceSlice> Trainer<Real>::state_slices() const {
    std::vector<DeviceSlice> slices;
    for_each_state(*this, &ShardLayout::share, [&](size_t, const ParameterTensor&, const DeviceSlice& part) {
        if (part.slice.count > 0) slices.push_back(part);
    });
    const bool is_first_group = static_cast<size_t>(comm_.rank()) < layout_.group_size();
    for (const DeviceSlice& part : second_moments())
        if (is_first_group && part.values.values) slices.push_back(part);
    if (gradients_.residuals())
        slices.push_back({{residuals_of(comm_.rank()), "residual", 0, table_.count(), "BF16"}, gradients_.residuals()});
    return slices;
}

template <class Real>
std::vector<StateTensor> Trainer<Real>::state_tensors() const {
    std::vector<StateTensor> tensors;
    for_each_state(*this, &ShardLayout::slice, [&](size_t, const ParameterTensor& tensor, const DeviceSlice& part) {
        if (part.slice.part == "master")
            tensors.push_back({tensor.name, {tensor.shape.begin(), tensor.shape.end()}, {}});
        tensors.back().parts.push_back(part.slice.part);
    });
    for (const auto& [slice, values] : second_moments())
        tensors.push_back({slice.tensor, {static_cast<int64_t>(slice.count)}, {slice.part}});
    for (int r = 0; r < comm_.world() && gradients_.residual_count() > 0; r++)
        tensors.push_back({residuals_of(r), {static_cast<int64_t>(table_.count())}, {"residual"}});
    return tensors;
}

template <class Real>
TrainerState Trainer<Real>::read_state() {
    TrainerState state;
    state.step = step_;
    state.optimizer = optimizer_.read_state(stream_);
    if (fp8()) state.fp8 = fp8()->read_state(stream_);
    if (gradients_.residuals()) {
        state.residuals = comm_.world();
        state.residual_alignment = table_.alignment();
    }
    return state;
}

template <class Real>
bool Trainer<Real>::continues_residuals(const TrainerState& state) const {
    return state.residuals == comm_.world() && state.residual_alignment == table_.alignment();
}

// Loads this rank's saved residuals, or starts them at zero.
template <class Real>
void Trainer<Real>::restore_residuals(const TrainerState& state, const ReadState& read) {
    bf16* const residuals = gradients_.residuals();
    if (!residuals) return;
    set_bytes(residuals, 0, table_.count() * sizeof(bf16), stream_);
    if (!continues_residuals(state)) return;
    read_part({{residuals_of(comm_.rank()), "residual", 0, table_.count(), "BF16"}, residuals}, read, stream_);
}

template <class Real>
bool Trainer<Real>::restore(const TrainerState& state, const ReadState& read) {
    const bool has_average = optimizer_.averages() && state.optimizer.averaged > 0;
    for_each_state(*this, &ShardLayout::slice,
                   [&](size_t unit, const ParameterTensor& tensor, const DeviceSlice& part) {
                       if (part.slice.part == "average" && !has_average) return;
                       if (part.slice.part != "master") return read_part(part, read, stream_);
                       const size_t begin = tensor.offset + part.slice.start;
                       read_in_pieces(part.slice, read, [&](size_t at, const std::vector<float>& values) {
                           weights_.set_master(unit, begin + at, values.data(), values.size(), stream_);
                       });
                   });
    for (const DeviceSlice& part : second_moments())
        if (part.values.values) read_part(part, read, stream_);
    restore_residuals(state, read);
    step_ = state.step;
    optimizer_.restore(state.optimizer, stream_);
    if (!fp8()) {
        weights_are_set();
        return true;
    }
    if (state.fp8) fp8()->mark_left(state.fp8->left);
    model_.linear().leave_fp8(step_, stream_);
    weights_are_set();
    // FP8 scales of gradients are valid only for the loss scale with which they were computed.
    const bool same_scale = read_back(optimizer_.loss_scale(), stream_) == state.optimizer.loss_scale.scale;
    return same_scale && state.fp8 && fp8()->restore(*state.fp8, stream_);
}

template <class Real>
typename Trainer<Real>::LossSum Trainer<Real>::evaluate(const int* tokens, const int* targets) {
    evaluated_->evaluate(tokens, targets, stream_);
    evaluated_->share_evaluation(stream_);
    return {read_back(evaluated_->eval_loss_sum(), stream_),
            static_cast<double>(read_back(evaluated_->eval_loss_count(), stream_))};
}

template <class Real>
std::vector<float> Trainer<Real>::token_losses(const int* tokens, const int* targets) {
    evaluated_->evaluate(tokens, targets, stream_);
    return token_losses();
}

template <class Real>
std::vector<float> Trainer<Real>::token_losses() const {
    return read_back(evaluated_->losses(), static_cast<size_t>(config_.batch) * config_.seq, stream_);
}

template class Trainer<float>;
template class Trainer<bf16>;

}  // namespace llmc
