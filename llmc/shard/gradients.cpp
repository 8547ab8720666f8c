// Reducing gradients over the ranks, unit by unit. See gradients.h.
#include "llmc/shard/gradients.h"

#include <algorithm>

#include "llmc/kernels/elementwise.h"
#include "llmc/shard/state_values.h"

namespace llmc {

Gradients::Gradients(const ShardLayout& layout)
    : layout_(layout),
      kept_(nullptr, layout.sharding().gradients),
      acquired_(ShardLayout::kSlots, ShardLayout::kNoUnit) {
    for (const Unit& unit : layout_.table().units()) names_.push_back("reduce " + unit.name);
    arena_.plan(&kept_, kept());
    if (!layout_.accumulates()) slots_.resize(ShardLayout::kSlots);
    for (size_t s = 0; s < slots_.size(); s++) arena_.plan(&slots_[s].memory, layout_.slot_count(s));
    const Comm& comm = layout_.comm();
    if (comm.world() == 1) return;
    size_t largest = 0;  // elements that one rank sums up at a time
    for (size_t u = 0; u < layout_.units(); u++) largest = std::max(largest, layout_.summed(u).count);
    const auto workspace = [&](size_t ranks, size_t count, Wire wire, bool accumulate) {
        const Comm part = Comm::planned(static_cast<int>(ranks), comm.name(), comm.reduce_order());
        return part.reduce_scatter_workspace(count, wire, accumulate);
    };
    const bool rounds = kept_.format != StateFormat::fp32;
    if (rounds && !adds_by_rank()) arena_.plan(&summed_, largest);
    arena_.plan(
        &workspace_,
        std::max(workspace(layout_.group_size(), largest, layout_.sharding().wire, !layout_.accumulates() && !rounds),
                 workspace(layout_.groups(), largest / layout_.groups(), layout_.wire_between_groups(), false)));
    if (residual_count() > 0) residual_arena_.plan(&residuals_, residual_count());
}

void Gradients::allocate(stream_t stream) {
    arena_.allocate();
    residual_arena_.allocate();
    clear(stream);
    const Comm& comm = layout_.comm();
    if (comm.world() == 1 && layout_.accumulates()) return;
    const int group = static_cast<int>(layout_.group_size());
    comm_ = comm.neighbours(group, "gradients");
    if (layout_.groups() > 1) groups_comm_ = comm.counterparts(group, "gradients of all groups");
    if (residuals_) set_bytes(residuals_, 0, residual_count() * sizeof(bf16), stream);
    reduce_stream_ = create_stream(StreamPriority::communication);
    computed_ = create_event();
    reduced_ = create_event();
    for (Slot& slot : slots_) slot.reduced = create_event();
}

void Gradients::clear(stream_t stream) {
    set_bytes(kept_.values, 0, kept() * bytes_of(kept_.format), stream);
    for (size_t s = 0; s < slots_.size(); s++)
        set_bytes(slots_[s].memory, 0, layout_.slot_count(s) * sizeof(float), stream);
}

void Gradients::acquire(size_t unit, stream_t stream) {
    const size_t slot = layout_.slot_of(unit);
    size_t& acquired = acquired_[slot];
    if (acquired != ShardLayout::kNoUnit && acquired != unit)
        throw Error(ExitCode::failure,
                    "the gradient of {} cannot be acquired: its slot has {}'s, which has not been reduced",
                    layout_.name_of(unit), layout_.name_of(acquired));
    acquired = unit;
    if (!slots_.empty()) comm_.wait_for_peers(stream, slots_[slot].reduced);
}

float* Gradients::gradient(size_t unit, size_t tensor) {
    if (acquired_[layout_.slot_of(unit)] != unit)
        throw Error(ExitCode::failure,
                    "the gradient of {} was asked for ({}), which is not acquired, or has been reduced",
                    layout_.name_of(unit), layout_.table().unit(unit).tensors[tensor].name);
    return whole(unit) + layout_.table().unit(unit).tensors[tensor].offset;
}

void Gradients::reduce(size_t unit, stream_t stream) {
    const size_t slot = layout_.slot_of(unit);
    if (acquired_[slot] != unit)
        throw Error(ExitCode::failure, "the gradient of {} cannot be reduced: it is not acquired",
                    layout_.name_of(unit));
    acquired_[slot] = ShardLayout::kNoUnit;
    if (observer_) observer_(unit, whole(unit));
    const bool accumulates = layout_.accumulates();
    if (accumulates && (layout_.comm().world() == 1 || !last_)) return;
    record(computed_, stream);
    wait(reduce_stream_, computed_);
    const CommRange range(names_[unit].c_str(), comm_, reduce_stream_);
    const ShardLayout::Part part = layout_.summed(unit);
    const StateArray sum = sums(unit, part);
    if (sum.format == StateFormat::fp32)
        comm_.reduce_scatter(sum.as<float>(), whole(unit), part.count, layout_.sharding().wire, !accumulates && !first_,
                             workspace_, reduce_stream_, feedback(unit));
    else
        add_rounded(unit);
    if (!accumulates) record(slots_[slot].reduced, reduce_stream_);
    if (layout_.groups() > 1 && last_) sum_over_groups(unit);
    if (!layout_.is_sliced() && last_)
        comm_.all_gather(sums(unit, layout_.slice(unit)).values, sum.values, part.count * bytes_of(sum.format),
                         reduce_stream_);
    record(reduced_, reduce_stream_);
}

// Adds a micro-step's gradients to this rank's sums in BF16.
void Gradients::add_rounded(size_t unit) {
    const ShardLayout::Part part = layout_.summed(unit);
    const float* pieces = whole(unit);
    int added = 1;
    if (comm_.world() > 1 && adds_by_rank()) {
        pieces = reinterpret_cast<float*>(workspace_);
        added = comm_.world();
        comm_.all_to_all(workspace_, whole(unit), part.count * sizeof(float), reduce_stream_);
    } else if (comm_.world() > 1) {
        pieces = summed_;
        comm_.reduce_scatter(summed_, whole(unit), part.count, layout_.sharding().wire, false, workspace_,
                             reduce_stream_, feedback(unit));
    }
    add_gradients(sums(unit, part).as<bf16>(), pieces, added, part.count, first_, {rounding_key_ + unit, part.begin},
                  micro_step_ * added, reduce_stream_);
}

// The first time that a unit is sent in a step, its residuals are dropped if the previous step was skipped. Later
// micro-steps add to the residuals of the earlier ones.
Feedback Gradients::feedback(size_t unit) const {
    if (!residuals_) return {};
    const bool begins = first_ || layout_.accumulates();
    return {residuals_ + layout_.table().unit(unit).begin, loss_scale_, begins ? skips_ : nullptr, keep_residuals_};
}

// Sums the groups' sums of this rank's slice: each rank sums its share of the slice, then all shares are gathered.
void Gradients::sum_over_groups(size_t unit) {
    const CommRange range("sum over groups", groups_comm_, reduce_stream_);
    const ShardLayout::Part share = layout_.share(unit);
    float *const sum = sums(unit, layout_.summed(unit)).as<float>(), *const mine = sums(unit, share).as<float>();
    groups_comm_.reduce_scatter(mine, sum, share.count, layout_.wire_between_groups(), false, workspace_,
                                reduce_stream_);
    groups_comm_.all_gather(sum, mine, share.count * sizeof(float), reduce_stream_);
}

std::vector<float> Gradients::get_gradient(size_t unit, size_t tensor, stream_t stream) const {
    if (reduced_) wait(stream, reduced_);
    if (layout_.is_sliced()) return layout_.download(comm_, slice(unit), unit, tensor, stream);
    const ParameterTensor& info = layout_.table().unit(unit).tensors[tensor];
    return read_state(slice(unit).from(info.offset), info.count(), stream);
}

}  // namespace llmc
