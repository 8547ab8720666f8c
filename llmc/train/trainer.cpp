#include "llmc/train/trainer.h"

#include <algorithm>
#include <array>

#include "llmc/device/trace.h"
#include "llmc/device/transfer.h"

namespace llmc {
namespace {

Fp8Layers fp8_layers_of(const TrainerConfig& config) {
    if (!config.fp8) return {};
    return {config.fp8_layers, config.model.layers, linear_names(config.model)};
}

Sharding sharding_of(const TrainerConfig& config, const ParameterTable& table) {
    Sharding sharding = config.sharding;
    if (!config.fp8 || config.fp8_scaling() != Fp8Scaling::tensor) return sharding;
    const Fp8Layers layers = fp8_layers_of(config);
    for (const Unit& unit : table.units()) {
        sharding.fp8.emplace_back();
        for (const ParameterTensor& tensor : unit.tensors) {  // "h.3.fc.weight" of layer "h.3.fc"
            const std::string layer = tensor.name.substr(0, tensor.name.rfind('.'));
            // The head's codes come from its working copy, which travels.
            sharding.fp8.back().push_back(tensor.decay && layer != kHeadLayer && layers.is_fp8(layer));
        }
    }
    return sharding;
}

ModelSetup model_setup(const TrainerConfig& config) {
    return {config.model,          config.batch,        config.seq,
            config.shortest_piece, config.recompute,    config.fp8 ? &*config.fp8 : nullptr,
            fp8_layers_of(config), config.logits_bytes, config.kernels,
            config.loss,           config.end_token,    config.document_positions};
}

constexpr size_t kPiece = size_t{4} << 20;  // elements on the host at a time, of a state that is read

// A tensor of the state: what a rank owes, all units behind each other.
std::string residuals_of(int rank) { return strprintf("gradients.%d", rank); }

const char* dtype_of(MomentFormat format) { return format == MomentFormat::bf16 ? "BF16" : "F32"; }

// To the part's elements from `at` on. In BF16 to nearest, which keeps what was BF16.
void write_moment(const DeviceSlice& part, size_t at, const std::vector<float>& values, stream_t stream) {
    if (part.slice.dtype == dtype_of(MomentFormat::fp32)) {
        write_through(static_cast<float*>(part.values) + at, values.data(), values.size(), stream);
        return;
    }
    std::vector<bf16> rounded;
    for (const float value : values) rounded.push_back(to_bf16(value));
    write_through(static_cast<bf16*>(part.values) + at, rounded.data(), rounded.size(), stream);
}

// At most: of each tensor master, m, v, the working copy and two of its FP8 codes, the gradient and two of its sums; of
// each unit its output; the losses and their sum; and the head's codes in FP8.
size_t checksums_of_step(const ParameterTable& table) {
    size_t tensors = 0;
    for (const Unit& unit : table.units()) tensors += unit.tensors.size();
    return 9 * tensors + table.units().size() + 4;
}

}  // namespace

size_t MemoryByKind::operator[](MemoryKind kind) const {
    return std::array{weights, gradients, optimizer, activations, workspace}[static_cast<size_t>(kind)];
}

template <class Real>
Trainer<Real>::Trainer(const TrainerConfig& config, const Comm& comm)
    : config_(config),
      comm_(comm),
      table_(parameter_units(config.model), comm.world()),
      layout_(table_, comm, sharding_of(config, table_)),
      weights_(layout_),
      gradients_(layout_),
      matmul_(config.tf32, config.fast_accumulation, config.fp8_scaling()),
      model_(model_setup(config_), weights_, gradients_, matmul_),
      optimizer_(weights_, gradients_, config.schedule, config.adamw, config.clip, config.loss_scale,
                 config.skip_spikes, config.optimizer, &matmul_) {
    matmul_.choose(config.products);
    if (config.verify_every > 0)
        verification_.emplace(comm, checksums_of_step(table_) + second_moments().size(),
                              static_cast<size_t>(fp8() ? fp8()->count() : 0));
}

template <class Real>
Trainer<Real>::~Trainer() {
    if (results_) tear_down([this] { destroy_stream(stream_); });
}

// Of all products: the model's layers', and the optimizer's.
template <class Real>
std::vector<Matmul::LinearShape> Trainer<Real>::product_shapes() const {
    std::vector<Matmul::LinearShape> shapes = model_.linear().shapes();
    if (optimizer_.muon() && !config_.forward_only)
        shapes.insert(shapes.end(), optimizer_.muon()->shapes().begin(), optimizer_.muon()->shapes().end());
    return shapes;
}

template <class Real>
MemoryByKind Trainer<Real>::memory() const {
    MemoryByKind memory;
    memory.weights = weights_.working_bytes() + model_.linear().weight_bytes();
    memory.gradients = config_.forward_only ? 0 : gradients_.bytes();
    memory.optimizer = weights_.master_bytes() + (config_.forward_only ? 0 : optimizer_.moment_bytes());
    memory.activations = model_.activation_bytes() + model_.linear().activation_bytes();
    memory.workspace = model_.workspace_bytes() + (config_.forward_only ? 0 : optimizer_.workspace_bytes()) +
                       Matmul::planned_bytes(operand_type<Real>, product_shapes(), config_.fp8_scaling());
    if (verification_) memory.workspace += verification_->bytes();
    memory.staging += gradients_.residual_count() * sizeof(bf16);
    for (size_t u = 0; u < layout_.units(); u++)
        for (const ParameterTensor& tensor : table_.unit(u).tensors) {
            const ShardLayout::Part part = ShardLayout::overlap(layout_.share(u), tensor);
            memory.staging += part.count * sizeof(float);
            for (const auto& moment : optimizer_.moments_of(u, tensor, part.begin))
                memory.staging += part.count * bytes_of(moment.format);
        }
    return memory;
}

template <class Real>
void Trainer<Real>::allocate() {
    stream_ = create_stream();
    choose_kernels(stream_, config_.kernels);
    results_.emplace();
    weights_.allocate(stream_);
    if (!config_.forward_only) gradients_.allocate(stream_);
    model_.allocate(stream_);
    if (!config_.forward_only) {
        optimizer_.allocate(stream_);
        gradients_.feed_back(optimizer_.loss_scale(), &optimizer_.state()->consecutive_skips);
    }
    if (verification_) verification_->allocate();
    matmul_.allocate();  // last: it can do with less
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
    weights_.set_tensor(place.unit, place.tensor, padded, stream_);
}

template <class Real>
void Trainer<Real>::weights_are_set() {
    model_.prepare_weights(stream_);
    if (verification_) verification_->drop();
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
    results_->begin(kind.continues, stream_);
    matmul_.reset_counts();
    if (fp8()) fp8()->count_losses(kind.count_losses);
    if (fp8() && kind.probes) fp8()->clear_probed(stream_);
    if (verifies(step_ + 1) && !verification_->has_begun()) begin_verification();
}

template <class Real>
void Trainer<Real>::micro_step(const int* tokens, const int* targets, float weight) {
    const int64_t total = int64_t{config_.batch} * config_.seq * kind_.micro_steps * comm_.world();
    const bool first = micro_step_ == 0, last = ++micro_step_ == kind_.micro_steps;
    const auto make = [&] {
        if (fp8()) fp8()->probe(kind_.probes && first);
        model_.train_micro_step(tokens, targets, weight / static_cast<float>(total), optimizer_.loss_scale(), first,
                                stream_, last, kind_.length);
    };
    if (first && verifies(step_ + 1))
        make_twice(make);
    else
        make();
}

template <class Real>
std::vector<Fp8Fallback> Trainer<Real>::finish_step() {
    if (micro_step_ != kind_.micro_steps)
        throw Error(ExitCode::failure,
                    strprintf("a step of %d micro-steps was finished after %d", kind_.micro_steps, micro_step_));
    const ProductCounts& all = matmul_.counts();
    const int64_t n = kind_.micro_steps;
    products_ = {all.fp8 / n, all.bf16 / n, all.fp32 / n, all.emulated / n};
    if (fp8()) fp8()->check(stream_);
    if (verifies(step_ + 1)) end_verification();
    optimizer_.update(model_.train_loss_sum(), fp8() ? fp8()->bad_flag() : nullptr, stream_);
    if (fp8()) fp8()->finish_step(optimizer_.loss_scale_change(), stream_);
    const std::vector<Fp8Fallback> left = model_.fall_back(stream_);
    model_.prepare_weights(stream_);
    results_->submit(++step_, optimizer_.state(), model_.train_loss_count(), optimizer_.loss_scale(), stream_);
    if (verifies(step_ + 1)) begin_verification();
    return left;
}

template <class Real>
std::optional<StepResult> Trainer<Real>::take_result(int leave) {
    std::optional<StepResult> result = results_->take(leave);
    if (result && verification_) result->verified = verification_->take(result->step);
    return result;
}

// ---- a step that is verified ---------------------------------------------------------------------------------------

// Masters and moments, from one optimizer to the next.
template <class Real>
void Trainer<Real>::see_state(bool again) {
    const ProfileRange range("verify state", stream_);
    for (size_t u = 0; u < table_.units().size(); u++) {
        see_tensors(Verified::state, again, "master of ", u, weights_.slice(u).master);
        const ShardLayout::Part held = layout_.slice(u);
        for (const ParameterTensor& tensor : table_.unit(u).tensors) {
            const ShardLayout::Part part = ShardLayout::overlap(held, tensor);
            for (const auto& moment : optimizer_.moments_of(u, tensor, part.begin))
                verification_->see(
                    Verified::state, again,
                    {moment.name + (" of " + tensor.name), moment.values, part.count * bytes_of(moment.format)},
                    !layout_.is_sliced(), stream_);
        }
    }
    for (const auto& [slice, values] : second_moments())
        verification_->see(Verified::state, again,
                           {slice.part + " of " + slice.tensor, values, values ? slice.count * sizeof(float) : 0},
                           false, stream_);
}

template <class Real>
void Trainer<Real>::see_weights(bool again) {
    const bool whole = layout_.keeps_whole_weights();
    for (size_t u = 0; whole && u < table_.units().size(); u++) {  // they may still be on their way
        weights_.gather(u, stream_);
        weights_.release(u, stream_);
    }
    for (const auto& copies : {weights_.working_copies(), model_.linear().weight_codes()})
        for (const NamedMemory& memory : copies) verification_->see(Verified::weights, again, memory, whole, stream_);
}

// Of the first micro-step, with its gradients summed: the second time writes where they are.
template <class Real>
void Trainer<Real>::see_results(bool again) {
    gradients_.finish_reduce(stream_);
    for (const NamedMemory& memory : model_.activations())
        verification_->see(Verified::activations, again, memory, false, stream_);
    // Of several ranks NCCL sums in whatever order it likes.
    if (std::string(comm_.name()) == "nccl" && comm_.reduce_order() == ReduceOrder::any) return;
    verification_->see(Verified::sums, again, {"losses", model_.train_loss_sum(), sizeof(double)}, false, stream_);
    see_gradients(Verified::sums, again);
}

template <class Real>
void Trainer<Real>::see_gradients(Verified kind, bool again) {
    for (size_t u = table_.units().size(); u-- > 0;) see_tensors(kind, again, "gradient of ", u, gradients_.slice(u));
}

// This rank's slice of a unit, tensor by tensor.
template <class Real>
void Trainer<Real>::see_tensors(Verified kind, bool again, const std::string& what, size_t unit, const float* slice) {
    const ShardLayout::Part held = layout_.slice(unit);
    const bool everywhere = !layout_.is_sliced() && kind != Verified::sums;  // which may be of this rank alone
    for (const ParameterTensor& tensor : table_.unit(unit).tensors) {
        const ShardLayout::Part part = ShardLayout::overlap(held, tensor);
        verification_->see(kind, again,
                           {what + tensor.name, slice + part.begin - held.begin, part.count * sizeof(float)},
                           everywhere, stream_);
    }
}

// The first time leaves no trace: gradients and sums of losses are overwritten, the states of FP8 tensors put back,
// residuals left as they are. Between the two, working copies are made again: where they were wrong, the results differ
// too.
template <class Real>
template <class MicroStep>
void Trainer<Real>::make_twice(MicroStep&& micro_step) {
    const auto make = [&](bool again) {
        gradients_.observe([this, again](size_t unit, const float* gradient) {
            for (const ParameterTensor& tensor : table_.unit(unit).tensors)
                verification_->see(
                    Verified::gradients, again,
                    {"gradient of " + tensor.name, gradient + tensor.offset, tensor.count() * sizeof(float)}, false,
                    stream_);
        });
        gradients_.keep_residuals(again);
        micro_step();
        gradients_.observe({});
    };
    {
        const Verification::Timed timed(*verification_, stream_);
        const ProfileRange range("verify: the first time", stream_);
        if (fp8()) fp8()->put_aside(verification_->fp8_aside(), stream_);
        see_weights(false);
        if (fp8()) fp8()->note(false);
        make(false);
        if (fp8()) fp8()->note(true);
        see_results(false);
        if (fp8()) fp8()->put_back(verification_->fp8_aside(), stream_);
        matmul_.reset_counts();
        model_.linear().make_weights_again(stream_);
        see_weights(true);
    }
    make(true);
    const Verification::Timed timed(*verification_, stream_);
    const ProfileRange range("verify: the second time", stream_);
    see_results(true);
}

template <class Real>
void Trainer<Real>::begin_verification() {
    verification_->begin(stream_);
    const Verification::Timed timed(*verification_, stream_);
    see_state(false);
}

// Before the optimizer.
template <class Real>
void Trainer<Real>::end_verification() {
    {
        const Verification::Timed timed(*verification_, stream_);
        see_state(true);
        gradients_.finish_reduce(stream_);
        if (!layout_.is_sliced() && comm_.world() > 1) see_gradients(Verified::totals, true);
    }
    verification_->end(step_ + 1, stream_);
}

// Every part of the unit's tensors between two of its elements, all of them held here.
template <class Real>
std::vector<DeviceSlice> Trainer<Real>::slices_within(size_t unit, size_t begin, size_t count) {
    std::vector<DeviceSlice> slices;
    const ShardLayout::Part held = layout_.slice(unit);
    float* const masters = weights_.slice(unit).master;
    for (const ParameterTensor& tensor : table_.unit(unit).tensors) {
        const ShardLayout::Part wanted = ShardLayout::overlap({begin, count}, tensor);
        if (wanted.count == 0) continue;
        const auto add = [&](const char* part, void* values, MomentFormat format) {
            slices.push_back(
                {{tensor.name, part, wanted.begin - tensor.offset, wanted.count, dtype_of(format)}, values});
        };
        add("master", masters + (wanted.begin - held.begin), MomentFormat::fp32);
        for (const auto& moment : optimizer_.moments_of(unit, tensor, wanted.begin))
            add(moment.name, moment.values, moment.format);
    }
    return slices;
}

// NorMuon's, of all matrices: without values where another rank has them.
template <class Real>
std::vector<DeviceSlice> Trainer<Real>::second_moments() const {
    std::vector<DeviceSlice> slices;
    if (!optimizer_.muon()) return slices;
    for (const auto& moment : optimizer_.muon()->second_moments())
        slices.push_back({{moment.matrix, "second", 0, moment.lines}, moment.values});
    return slices;
}

template <class Real>
std::vector<DeviceSlice> Trainer<Real>::state_slices() {
    std::vector<DeviceSlice> slices;
    for (size_t u = 0; u < table_.units().size(); u++) {
        const ShardLayout::Part share = layout_.share(u);
        const std::vector<DeviceSlice> more = slices_within(u, share.begin, share.count);
        slices.insert(slices.end(), more.begin(), more.end());
    }
    const bool is_first_group = static_cast<size_t>(comm_.rank()) < layout_.group_size();
    for (const DeviceSlice& slice : second_moments())
        if (is_first_group && slice.values) slices.push_back(slice);
    if (gradients_.residuals())
        slices.push_back({{residuals_of(comm_.rank()), "residual", 0, table_.count(), "BF16"}, gradients_.residuals()});
    return slices;
}

template <class Real>
std::vector<StateTensor> Trainer<Real>::state_tensors() const {
    std::vector<StateTensor> tensors;
    for (size_t u = 0; u < table_.units().size(); u++)
        for (const ParameterTensor& tensor : table_.unit(u).tensors) {
            std::vector<std::string> parts = {"master"};
            for (const auto& moment : optimizer_.moments_of(u, tensor, tensor.offset)) parts.push_back(moment.name);
            tensors.push_back({tensor.name, {tensor.shape.begin(), tensor.shape.end()}, parts});
        }
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
    if (gradients_.residuals()) state.residuals = comm_.world();
    return state;
}

// This rank's own; of other ranks than these they would be those of other micro-batches, and of another table.
template <class Real>
void Trainer<Real>::restore_residuals(const TrainerState& state, const ReadState& read) {
    bf16* const residuals = gradients_.residuals();
    if (!residuals) return;
    set_bytes(residuals, 0, table_.count() * sizeof(bf16), stream_);
    if (state.residuals != comm_.world()) return;
    const DeviceSlice part{{residuals_of(comm_.rank()), "residual", 0, table_.count(), "BF16"}, residuals};
    std::vector<float> values;
    for (size_t at = 0; at < part.slice.count; at += kPiece) {
        values.resize(std::min<size_t>(kPiece, part.slice.count - at));
        read(part.slice.tensor, part.slice.part, at, values.size(), values.data());
        write_moment(part, at, values, stream_);
    }
}

template <class Real>
bool Trainer<Real>::restore(const TrainerState& state, const ReadState& read) {
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
                    write_moment(part, at, values, stream_);
            }
        }
    }
    for (const auto& [slice, moments] : second_moments()) {
        if (!moments) continue;
        values.resize(slice.count);
        read(slice.tensor, slice.part, 0, slice.count, values.data());
        write_through(static_cast<float*>(moments), values.data(), values.size(), stream_);
    }
    restore_residuals(state, read);
    step_ = state.step;
    optimizer_.restore(state.optimizer, stream_);
    if (!fp8()) {
        weights_are_set();
        return true;
    }
    if (state.fp8) fp8()->mark_left(state.fp8->left);
    if (state.fp8) fp8()->restore_smoothing(*state.fp8, stream_);
    model_.fall_back(stream_);
    weights_are_set();
    // Gradients, and the scales made for them, are multiples of the loss scale.
    const bool same_scale = read_back(optimizer_.loss_scale(), stream_) == state.optimizer.loss_scale;
    return same_scale && state.fp8 && fp8()->restore(*state.fp8, stream_);
}

template <class Real>
typename Trainer<Real>::LossSum Trainer<Real>::evaluate(const int* tokens, const int* targets) {
    model_.evaluate(tokens, targets, true, stream_);
    model_.share_evaluation(stream_);
    return {read_back(model_.eval_loss_sum(), stream_),
            static_cast<double>(read_back(model_.eval_loss_count(), stream_))};
}

template <class Real>
std::vector<float> Trainer<Real>::token_losses(const int* tokens, const int* targets) {
    model_.evaluate(tokens, targets, true, stream_);
    return read_back(model_.losses(), static_cast<size_t>(config_.batch) * static_cast<size_t>(config_.seq), stream_);
}

template class Trainer<float>;
template class Trainer<bf16>;

}  // namespace llmc
