// Norms by tensor. See signals.h.
#include "llmc/train/signals.h"

#include <algorithm>
#include <cmath>

#include "llmc/device/trace.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/train/trainer.h"

namespace llmc {

template <class Real>
template <class Visit>
void Signals<Real>::for_each_share(const Visit& visit) const {
    size_t number = 0;
    trainer_.for_each_state(&ShardLayout::share, [&](size_t u, const ParameterTensor& tensor, const DeviceSlice& part) {
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
        largest = std::max(largest, unit.count / ranks);
    }
    elements_ = trainer.table().count() / ranks;
    arena_.plan(&weights_, elements_);
    arena_.plan(&partials_, global_norm_blocks(largest));
    arena_.plan(&squares_, kNorms * tensors_);
    arena_.plan(&loss_scale_, 1);
}

template <class Real>
Signals<Real>::~Signals() {
    for (Slot& slot : slots_) {
        tear_down([&] { pinned_free(slot.squares); });
        tear_down([&] { pinned_free(slot.loss_scale); });
        tear_down([&] { pinned_free(slot.max_logits); });
    }
}

template <class Real>
void Signals<Real>::allocate() {
    arena_.allocate();
    for (Slot& slot : slots_) {
        slot.squares = static_cast<double*>(pinned_malloc(kNorms * tensors_ * sizeof(double)));
        slot.loss_scale = static_cast<float*>(pinned_malloc(sizeof(float)));
        slot.max_logits = static_cast<float*>(pinned_malloc(trainer_.model().max_logit_count() * sizeof(float)));
    }
}

template <class Real>
bool Signals<Real>::is_due(int64_t step) const {
    return step % trainer_.config().signals_every == 0;
}

template <class Real>
void Signals<Real>::add_squares(Norm norm, size_t tensor, const StateArray& values, size_t count) {
    global_norm_partials(partials_, values, count, trainer_.stream());
    add_partials(squares_ + norm * tensors_ + tensor, partials_, global_norm_blocks(count), trainer_.stream());
}

template <class Real>
void Signals<Real>::before_optimizer(int64_t step) {
    if (!is_due(step)) return;
    const stream_t stream = trainer_.stream();
    const ProfileRange range("signals", stream);
    trainer_.gradients().finish_reduce(stream);
    set_bytes(squares_, 0, kNorms * tensors_ * sizeof(double), stream);
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
    Slot& slot = slots_[step / trainer_.config().signals_every % 2];
    slot.step = step;
    copy_to_host(slot.squares, squares_, kNorms * tensors_ * sizeof(double), stream);
    copy_to_host(slot.loss_scale, loss_scale_, sizeof(float), stream);
    const Transformer<Real>& model = trainer_.model();
    copy_to_host(slot.max_logits, model.max_logits(), model.max_logit_count() * sizeof(float), stream);
}

template <class Real>
std::vector<TensorSignal> Signals<Real>::take(int64_t step) {
    if (!is_due(step)) return {};
    const Slot& slot = slots_[step / trainer_.config().signals_every % 2];
    if (slot.step != step) return {};
    const Comm& comm = trainer_.comm();
    const size_t n = kNorms * tensors_;
    std::vector<double> all(n * comm.world()), sums(n);
    comm.host_all_gather(all.data(), slot.squares, n * sizeof(double));
    for (size_t i = 0; i < all.size(); i++) sums[i % n] += all[i];
    const auto norm = [&](Norm kind, size_t tensor) { return std::sqrt(sums[kind * tensors_ + tensor]); };
    const auto largest = [](const float* logits, int heads) {
        const int head = static_cast<int>(std::max_element(logits, logits + heads) - logits);
        return MaxLogit{logits[head], head};
    };
    const int heads = trainer_.config().model.heads;
    int layer = 0;
    std::vector<TensorSignal> signals;
    for (const Unit& unit : trainer_.table().units())
        for (const ParameterTensor& tensor : unit.tensors) {
            const size_t t = signals.size();
            signals.push_back({tensor.name, norm(gradient, t) / *slot.loss_scale, norm(weight, t), norm(update, t)});
            if (tensor.layer.ends_with(".qkv") && tensor.shape.size() == 2)
                signals.back().max_logit = largest(slot.max_logits + heads * layer++, heads);
        }
    return signals;
}

template class Signals<float>;
template class Signals<bf16>;

}  // namespace llmc
