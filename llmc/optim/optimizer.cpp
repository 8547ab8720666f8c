// Launches one optimizer step: the sums for the global norm, the numbers of the step, and the update of every unit.
#include "llmc/optim/optimizer.h"

#include <algorithm>

#include "llmc/device/transfer.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"

namespace llmc {

template <class Real>
Optimizer<Real>::Optimizer(const OptimizerSetup& setup, Weights<Real>& weights, Gradients& gradients, Matmul* matmul)
    : setup_(setup), weights_(weights), gradients_(gradients), moments_(weights.layout()), ring_(weights.layout()) {
    const ShardLayout& layout = weights.layout();
    for (size_t u = 0; u < layout.units(); u++) partial_count_ += global_norm_blocks(layout.share(u).count);
    if (is_muon(setup_.optimizer.kind)) {
        add_muon_moments();
        muon_.emplace(weights, gradients, *matmul, setup_.optimizer);
        arena_.plan(&group_states_, kRateGroups);
    } else if (setup_.optimizer.kind == OptimizerKind::adamw) {
        m_ = moments_.add_everywhere("m", setup_.optimizer.adam_moments);
        v_ = moments_.add_everywhere("v", setup_.optimizer.second_moments());
    } else if (setup_.optimizer.keeps_moments()) {
        m_ = moments_.add_everywhere("m");
    }
    if (averages()) average_ = moments_.add_everywhere("average");
    arena_.plan(&partials_, partial_count_);
    arena_.plan(&state_, 1);
    arena_.plan(&loss_scale_, 1);
    arena_.plan(&spikes_, 1);
    if (setup_.clip > 0 && setup_.optimizer.clip_kind == ClipKind::tensor) {
        for_each_tensor([&](size_t, const ParameterTensor&, size_t number) { tensors_ = number + 1; });
        arena_.plan(&squares_, tensors_);
        arena_.plan(&factors_, tensors_);
    }
    const size_t most = std::max(partial_count_, tensors_);
    if (layout.comm().world() > 1) arena_.plan(&workspace_, layout.comm().template all_reduce_workspace<double>(most));
}

// Calls visit(unit, tensor, its number among all tensors).
template <class Real>
template <class Visit>
void Optimizer<Real>::for_each_tensor(Visit&& visit) const {
    size_t number = 0;
    const std::vector<Unit>& units = weights_.table().units();
    for (size_t u = 0; u < units.size(); u++)
        for (const ParameterTensor& tensor : units[u].tensors) visit(u, tensor, number++);
}

// Muon's momentum is always FP32. If AdamW's moments are not, "m" therefore consists of two arrays.
template <class Real>
void Optimizer<Real>::add_muon_moments() {
    const ParameterTable& table = weights_.table();
    std::vector<ShardLayout::Part> matrices, rest;
    for (size_t u = 0; u < table.units().size(); u++) {
        const size_t count = muon_elements(table, u);
        matrices.push_back({0, count});
        rest.push_back({count, table.unit(u).count - count});
    }
    if (setup_.optimizer.adam_moments == StateFormat::fp32) {
        muon_m_ = m_ = moments_.add_everywhere("m");
    } else {
        muon_m_ = moments_.add("m", std::move(matrices));
        m_ = moments_.add("m", rest, setup_.optimizer.adam_moments);
    }
    v_ = moments_.add("v", std::move(rest), setup_.optimizer.second_moments());
}

template <class Real>
void Optimizer<Real>::allocate(stream_t stream) {
    arena_.allocate();
    moments_.allocate(stream);
    ring_.allocate(stream);
    if (muon_) muon_->allocate(stream);
    set_bytes(state_, 0, sizeof(StepState), stream);
    reset_loss_scale(loss_scale_, setup_.loss_scale, stream);
    reset_spikes(spikes_, stream);
}

// Partial sums of squares of the gradients, summed over the ranks.
template <class Real>
void Optimizer<Real>::sum_squares(stream_t stream) {
    const ShardLayout& layout = weights_.layout();
    {
        const ProfileRange range("gradient norm", stream);
        size_t at = 0;
        for (size_t u = 0; u < layout.units(); u++) {
            const size_t count = layout.share(u).count;
            global_norm_partials(partials_ + at, gradients_.share(u), count, stream);
            at += global_norm_blocks(count);
        }
    }
    const Comm& comm = layout.comm();
    if (comm.world() == 1) return;
    const CommRange range("sum the norm", comm, stream);
    comm.all_reduce(partials_, partial_count_, ReduceOp::sum, workspace_, stream);
}

template <class Real>
void Optimizer<Real>::clip(stream_t stream) {
    const ClipKind kind = setup_.optimizer.clip_kind;
    if (setup_.clip <= 0 || kind == ClipKind::norm) return;
    const ProfileRange range("clip", stream);
    if (kind == ClipKind::tensor) return clip_tensors(stream);
    const ShardLayout& layout = weights_.layout();
    for (size_t u = 0; u < layout.units(); u++)
        clip_values(gradients_.slice(u).as<float>(), layout.slice(u).count, setup_.clip, loss_scale(), stream);
}

template <class Real>
void Optimizer<Real>::clip_tensors(stream_t stream) {
    const ShardLayout& layout = weights_.layout();
    set_bytes(squares_, 0, tensors_ * sizeof(double), stream);
    for_each_tensor([&](size_t unit, const ParameterTensor& tensor, size_t number) {
        const ShardLayout::Part share = layout.share(unit), part = ShardLayout::overlap(share, tensor);
        if (part.count == 0) return;
        global_norm_partials(partials_, gradients_.share(unit).from(part.begin - share.begin), part.count, stream);
        add_partials(squares_ + number, partials_, global_norm_blocks(part.count), stream);
    });
    if (layout.comm().world() > 1) {
        const CommRange range("sum the tensors' norms", layout.comm(), stream);
        layout.comm().all_reduce(squares_, tensors_, ReduceOp::sum, workspace_, stream);
    }
    clip_factors(factors_, squares_, tensors_, setup_.clip, loss_scale(), stream);
    for_each_tensor([&](size_t unit, const ParameterTensor& tensor, size_t number) {
        const ShardLayout::Part slice = layout.slice(unit), part = ShardLayout::overlap(slice, tensor);
        scale_gradient(gradients_.slice(unit).from(part.begin - slice.begin).template as<float>(), part.count,
                       factors_ + number, stream);
    });
}

template <class Real>
void Optimizer<Real>::update(const double* loss_sum, const int* bad_flag, stream_t stream) {
    gradients_.finish_reduce(stream);
    sum_squares(stream);
    const ProfileRange range("update", stream);
    prepare_step(state_, partials_, partial_count_, loss_sum, loss_scale(), bad_flag, setup_.schedule,
                 setup_.optimizer.adamw(), setup_.optimizer.clip_kind == ClipKind::norm ? setup_.clip : 0,
                 {spikes_, setup_.skip_spikes}, stream);
    update_spikes(spikes_, state_, stream);
    clip(stream);
    if (muon_) {
        scale_rates(group_states_, state_, setup_.optimizer.rates(setup_.schedule.lr), stream);
        muon_->update(moments_, muon_m_, ring_, state_, stream);
    }
    for (size_t u = 0; u < weights_.layout().units(); u++) {
        if (muon_)
            update_rest(u, stream);
        else
            update_unit(u, stream);
    }
    ring_.finish(stream);
    update_loss_scale(loss_scale_, state_, setup_.loss_scale, stream);
}

// Updates the part of a unit that lies in one range of this rank's slice. Weight decay applies to its first `decayed`
// elements.
template <class Real>
void Optimizer<Real>::update_part(size_t unit, Fp8State* fp8, ShardLayout::Part part, size_t decayed,
                                  const StepState* state, stream_t stream) {
    const OptimizerConfig& config = setup_.optimizer;
    const size_t at = part.begin - weights_.layout().slice(unit).begin;
    const StateArray none, m = config.keeps_moments() ? moments_.at(m_, unit, part.begin) : none;
    const StateArray v = config.keeps_second_moments() ? moments_.at(v_, unit, part.begin) : none;
    ring_.update({weights_.slice(unit, at).master, m, v}, part.count, stream, [&](const StateRing::Slice& slice) {
        const size_t place = at + slice.begin;
        const UpdateTensors<Real> tensors{slice[0],
                                          slice[1],
                                          slice[2],
                                          weights_.slice(unit, place).working,
                                          gradients_.slice(unit).from(place),
                                          config.rounding(unit, part.begin + slice.begin)};
        const auto update = [&](auto&& launch, const auto& settings) {
            launch(tensors, fp8, slice.count, slice.of_first(decayed), settings, state, stream);
        };
        if (config.kind == OptimizerKind::lion)
            update(lion_update<Real>, config.lion());
        else if (config.kind == OptimizerKind::sgd)
            update(sgd_update<Real>, config.sgd());
        else
            update(adamw_update<Real>, config.adamw());
    });
}

// Updates this rank's slice of a unit, range by range.
template <class Real>
void Optimizer<Real>::update_unit(size_t unit, stream_t stream) {
    const size_t begin = weights_.layout().slice(unit).begin;
    for (const auto& range : weights_.ranges(unit))
        update_part(unit, range.fp8, {begin + range.begin, range.count}, range.decay_count, state_, stream);
}

// AdamW on the parts of this rank's slice that Muon does not update: matrices outside of the blocks, and vectors.
template <class Real>
void Optimizer<Real>::update_rest(size_t unit, stream_t stream) {
    const Unit& info = weights_.table().unit(unit);
    const size_t first = weights_.layout().slice(unit).begin, muon = muon_elements(weights_.table(), unit);
    const StepState* const matrices = group_states_ + (unit == 0 ? 0 : 1);  // rates of the embedding or the head
    const auto update = [&](size_t begin, size_t end, Fp8State* fp8, const StepState* state) {
        if (begin >= end) return;
        const size_t count = end - begin;
        update_part(unit, fp8, {begin, count}, begin < info.decay_count ? count : 0, state, stream);
    };
    for (const auto& range : weights_.ranges(unit)) {
        const size_t begin = std::max(first + range.begin, muon), end = first + range.begin + range.count;
        const size_t cut = std::clamp(info.decay_count, begin, std::max(begin, end));
        update(begin, std::min(cut, end), range.fp8, matrices);
        update(cut, end, range.fp8, group_states_ + 2);
    }
}

// Offloaded weights pass through the device a second time.
template <class Real>
void Optimizer<Real>::average(stream_t stream) {
    if (!averages()) return;
    const float share = averaged_++ == 0 ? 1.0f : static_cast<float>(1 - setup_.optimizer.average_decay);
    const ProfileRange range("average the weights", stream);
    for (size_t u = 0; u < weights_.layout().units(); u++) {
        const ShardLayout::Part part = weights_.layout().slice(u);
        ring_.update({weights_.slice(u).master, moments_.at(average_, u, part.begin)}, part.count, stream,
                     [&](const StateRing::Slice& slice) {
                         add_to_average(slice[1].template as<float>(), slice[0], share, slice.count, stream);
                     });
    }
    ring_.finish(stream);
}

template <class Real>
OptimizerState Optimizer<Real>::read_state(stream_t stream) const {
    return {read_back(state_, stream), read_back(loss_scale_, stream), setup_.loss_scale.dynamic,
            read_back(spikes_, stream), averaged_};
}

template <class Real>
void Optimizer<Real>::restore(const OptimizerState& saved, stream_t stream) {
    write_through(state_, saved.step, stream);
    write_through(spikes_, saved.spikes, stream);
    averaged_ = averages() ? saved.averaged : 0;
    const bool same = setup_.loss_scale.dynamic || saved.loss_scale.scale == setup_.loss_scale.initial;
    if (saved.dynamic == setup_.loss_scale.dynamic && same) write_through(loss_scale_, saved.loss_scale, stream);
}

template class Optimizer<float>;
template class Optimizer<bf16>;

}  // namespace llmc
