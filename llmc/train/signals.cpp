// Norms by tensor. See signals.h.
#include "llmc/train/signals.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llmc/comm/agreement.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/train/state.h"
#include "llmc/train/trainer.h"

namespace llmc {

template <class Real>
template <class Visit>
void Signals<Real>::for_each_share(const Visit& visit) const {
    size_t number = 0;
    for_each_state(
        trainer_, &ShardLayout::share, [&](size_t u, const ParameterTensor& tensor, const DeviceSlice& part) {
            if (part.slice.part != "master") return;
            Share share{number++, u, tensor.offset + part.slice.start, part.slice.count, part.values, nullptr};
            const size_t first = trainer_.table().unit(u).begin / static_cast<size_t>(trainer_.comm().world());
            if (share.count == 0) return;
            share.before = weights_ + first + share.begin - trainer_.layout().share(u).begin;
            visit(share);
        });
}

template <class Real>
Signals<Real>::Signals(Trainer<Real>& trainer) : trainer_(trainer) {
    // Shares of tensors differ from rank to rank, but all ranks plan the same.
    const size_t ranks = static_cast<size_t>(trainer.comm().world());
    size_t largest = 0;
    for (const Unit& unit : trainer.table().units()) {
        tensors_ += unit.tensors.size();
        largest = std::max(largest, unit.count);
    }
    elements_ = trainer.table().count() / ranks;
    arena_.plan(&weights_, elements_);
    arena_.plan(&partials_, global_norm_blocks(largest));
    arena_.plan(&squares_, squares());
    arena_.plan(&loss_scale_, 1);
}

template <class Real>
void Signals<Real>::allocate() {
    arena_.allocate();
    for (Slot& slot : slots_) {
        slot.squares = pinned<double>(squares());
        slot.loss_scale = pinned<float>(1);
        slot.max_logits = pinned<float>(trainer_.model().max_logit_count());
    }
}

template <class Real>
void Signals<Real>::add_squares(Norm norm, size_t tensor, const StateArray& values, size_t count) {
    global_norm_partials(partials_, values, count, trainer_.stream());
    add_partials(squares_ + norm * tensors_ + tensor, partials_, global_norm_blocks(count), trainer_.stream());
}

template <class Real>
void Signals<Real>::before_micro_step(int64_t step, int micro_steps, bool verified) {
    if (!is_due(step)) return;
    Slot& slot = slot_of(step);
    slot.parts = int64_t{micro_steps} * trainer_.comm().world();
    if (slot.parts == 1 || verified) slot.parts = 0;
    if (slot.parts == 0) return;
    trainer_.gradients().observe([this](size_t unit, const float* gradient) {
        const size_t count = trainer_.table().unit(unit).count;
        global_norm_partials(partials_, gradient, count, trainer_.stream());
        add_partials(squares_ + kNorms * tensors_ + unit, partials_, global_norm_blocks(count), trainer_.stream());
    });
}

template <class Real>
void Signals<Real>::before_optimizer(int64_t step) {
    if (!is_due(step)) return;
    const stream_t stream = trainer_.stream();
    const ProfileRange range("signals", stream);
    trainer_.gradients().finish_reduce(stream);
    // Nothing writes the sums of the first micro-batch if it was not measured.
    const size_t unwritten = slot_of(step).parts == 0 ? squares() : kNorms * tensors_;
    set_bytes(squares_, 0, unwritten * sizeof(double), stream);
    set_bytes(weights_, 0, elements_ * sizeof(float), stream);
    copy_on_device(loss_scale_, trainer_.optimizer().loss_scale(), sizeof(float), stream);
    for_each_share([&](const Share& share) {
        const StateArray gradients = trainer_.gradients().slice(share.unit);
        add_squares(gradient, share.tensor, gradients.from(share.begin - trainer_.layout().slice(share.unit).begin),
                    share.count);
        subtract_from(share.before, share.weights, share.count, stream);  // from zeros: a copy in FP32
    });
}

template <class Real>
void Signals<Real>::after_optimizer(int64_t step) {
    if (!is_due(step)) return;
    const stream_t stream = trainer_.stream();
    const ProfileRange range("signals", stream);
    for_each_share([&](const Share& share) {
        add_squares(weight, share.tensor, share.weights, share.count);
        subtract_from(share.before, share.weights, share.count, stream);
        add_squares(update, share.tensor, share.before, share.count);
    });
    Slot& slot = slot_of(step);
    slot.step = step;
    copy_to_host(slot.squares, squares_, squares() * sizeof(double), stream);
    copy_to_host(slot.loss_scale, loss_scale_, sizeof(float), stream);
    const Transformer<Real>& model = trainer_.model();
    copy_to_host(slot.max_logits, model.max_logits(), model.max_logit_count() * sizeof(float), stream);
}

template <class Real>
void Signals<Real>::take(StepRecord& record) {
    if (!is_due(record.step)) return;
    const Slot& slot = slot_of(record.step);
    if (slot.step != record.step) return;
    const Comm& comm = trainer_.comm();
    const size_t n = squares(), units = trainer_.table().units().size();
    const std::vector<double> sums = sum_over_ranks(comm, std::vector<double>(&slot.squares[0], &slot.squares[n]));
    const auto norm = [&](Norm kind, size_t tensor) { return std::sqrt(sums[kind * tensors_ + tensor]); };
    const auto largest = [](const float* logits, int heads) {
        const int head = static_cast<int>(std::max_element(logits, logits + heads) - logits);
        return MaxLogit{logits[head], head};
    };
    const int heads = trainer_.config().model.heads;
    int layer = 0;
    std::vector<TensorSignal>& signals = record.signals;
    for (const Unit& unit : trainer_.table().units())
        for (const ParameterTensor& tensor : unit.tensors) {
            const size_t t = signals.size();
            signals.push_back({tensor.name, norm(gradient, t) / *slot.loss_scale, norm(weight, t), norm(update, t)});
            if (tensor.layer.ends_with(".qkv") && tensor.shape.size() == 2)
                signals.back().max_logit = largest(slot.max_logits + heads * layer++, heads);
        }
    if (slot.parts == 0) return;
    // The loss of a micro-batch was divided by the number of micro-batches.
    const double parts = static_cast<double>(slot.parts), scale = *slot.loss_scale;
    const double of_step = std::accumulate(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(tensors_), 0.0);
    const double of_micro_batches = std::accumulate(sums.end() - static_cast<std::ptrdiff_t>(units), sums.end(), 0.0);
    record.noise = gradient_noise(of_micro_batches / comm.world() * parts * parts / (scale * scale),
                                  of_step / (scale * scale), trainer_.config().batch * trainer_.config().seq, parts);
}

template class Signals<float>;
template class Signals<bf16>;

}  // namespace llmc
