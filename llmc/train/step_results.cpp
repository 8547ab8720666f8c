// The ring of pinned slots through which the results of steps reach the host.
#include "llmc/train/step_results.h"

namespace llmc {

StepResults::StepResults(PeerWaits& waits) : waits_(waits) {
    for (Slot& slot : slots_) {
        slot.values = pinned<Slot::Values>(1);
        for (OwnedEvent* event : {&slot.begin, &slot.end}) *event = create_event(true);
    }
}

void StepResults::begin(bool continues, stream_t stream) {
    Slot& slot = slots_[submitted_ % 3];
    slot.continues = continues && submitted_ > 0;
    record(slot.begin, stream);
    waits_.begin_step(stream, slot.continues);
}

void StepResults::submit(int64_t step, const StepState* state, const int* loss_count, const float* loss_scale,
                         stream_t stream) {
    if (submitted_ - taken_ >= 2)
        throw Error(ExitCode::failure, "a third step was submitted before the first was read");
    Slot& slot = slots_[submitted_++ % 3];
    slot.record = {};
    slot.record.step = step;
    copy_to_host(&slot.values->state, state, sizeof(StepState), stream);
    copy_to_host(&slot.values->loss_scale, loss_scale, sizeof(float), stream);
    copy_to_host(&slot.values->loss_count, loss_count, sizeof(int), stream);
    record(slot.end, stream);
    slot.waits = waits_.end_step();
}

std::optional<StepRecord> StepResults::take(int leave) {
    if (submitted_ - taken_ <= leave) return std::nullopt;
    Slot& slot = slots_[taken_ % 3];
    const Slot& before = slots_[(taken_ + 2) % 3];
    synchronize(slot.end);
    taken_++;
    const StepState& state = slot.values->state;
    const auto per_target = [&](float sum) {
        return static_cast<float>(static_cast<double>(sum) / slot.values->loss_count);
    };
    StepRecord record = slot.record;
    record.loss = per_target(state.loss_sum);
    record.lr = static_cast<float>(state.learning_rate);
    record.norm = static_cast<float>(state.norm);
    record.skipped = state.skipped;
    record.consecutive_skips = state.consecutive_skips;
    record.bad_tensor = state.bad_tensor;
    if (state.spike & kLossSpike) record.spike.loss = per_target(state.loss_limit);
    if (state.spike & kNormSpike) record.spike.norm = state.norm_limit;
    record.loss_scale = slot.values->loss_scale;
    record.peers_ms = waits_.ms(std::exchange(slot.waits, {}));
    record.ms = elapsed_ms(slot.continues ? before.end : slot.begin, slot.end);
    return record;
}

}  // namespace llmc
