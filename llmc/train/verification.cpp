// Silent corruption: which bits are compared in a verified step, when, and how a difference is named. See
// verification.h.
#include "llmc/train/verification.h"

#include <map>

#include "llmc/comm/agreement.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/train/state.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

std::string text_of(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

// How messages describe the two checksums of a kind.
struct Wording {
    const char *what, *first, *second;
};
constexpr Wording kWording[kVerifiedKinds] = {
    {"", "after the optimizer of the step before", "before that of this step"},
    {"weights ", "in memory", "recomputed from the masters"},
    {"", "in the first micro-step", "when it was computed again"},
    {"", "in the first micro-step", "when it was computed again"},
    {"sum of ", "in the first micro-step", "when it was computed again"},
    {"sum of ", "", "before the optimizer"},
};

// An upper bound. Per tensor: the master, m with its scales, v, the working copy, its FP8 codes in two layouts, the
// gradient, two sums of it, and any average. Per unit its output. Then the losses, their sum, and the head's FP8 codes.
size_t checksums_per_step(const ParameterTable& table, bool averages) {
    size_t tensors = 0;
    for (const Unit& unit : table.units()) tensors += unit.tensors.size();
    return (averages ? 11 : 10) * tensors + table.units().size() + 4;
}

}  // namespace

StepChecksums::StepChecksums(const Comm& comm, size_t most) : comm_(comm), most_(most) {
    for (Round& round : rounds_) arena_.plan(&round.device, most_);
}

void StepChecksums::allocate() {
    arena_.allocate();
    for (Round& round : rounds_) {
        round.host = pinned<Pair>(most_);
        for (Span& span : round.spans) span = {create_event(true), create_event(true)};
    }
}

void StepChecksums::begin(stream_t stream) {
    begun_++;
    Round& round = current();
    for (std::vector<Row>& rows : round.rows) rows.clear();
    round.seen_again = {};
    round.count = round.timed = 0;
    set_bytes(round.device, 0, most_ * sizeof(Pair), stream);
}

void StepChecksums::end(int64_t step, stream_t stream) {
    Round& round = current();
    round.step = step;
    ended_ = begun_;
    copy_to_host(round.host, round.device, round.count * sizeof(Pair), stream);
}

StepChecksums::Row& StepChecksums::row_of(Verified kind, bool again, const std::string& name) {
    Round& round = current();
    const size_t k = static_cast<size_t>(kind), place = again ? round.seen_again[k]++ : round.rows[k].size();
    if (place < round.rows[k].size()) {
        Row& row = round.rows[k][place];
        if (row.name != name)
            throw Error(ExitCode::failure, "the second checksum of " + row.name + " was expected, not of " + name);
        row.twice = true;
        return row;
    }
    if (round.count == most_) throw Error(ExitCode::failure, "a verified step takes more checksums than planned");
    round.rows[k].push_back({name, round.count++});
    return round.rows[k].back();
}

void StepChecksums::see(Verified kind, bool again, const NamedMemory& memory, bool everywhere, stream_t stream) {
    Row& row = row_of(kind, again, memory.name);
    row.everywhere = everywhere;
    Pair& pair = current().device[row.index];
    checksum(again ? &pair.second : &pair.first, memory.address, memory.bytes, stream);
}

event_t StepChecksums::begin_span(stream_t stream) {
    Round& round = current();
    if (round.timed == kSpans) throw Error(ExitCode::failure, "a verified step has more timed scopes than planned");
    const Span& span = round.spans[round.timed++];
    record(span.begin, stream);
    return span.end;
}

std::optional<VerifiedStep> StepChecksums::take(int64_t step) {
    if (taken_ == ended_) return std::nullopt;
    const Round& round = rounds_[static_cast<size_t>(taken_) % kRounds];
    if (round.step != step) return std::nullopt;
    taken_++;
    VerifiedStep verified;
    for (size_t i = 0; i < round.timed; i++) verified.ms += elapsed_ms(round.spans[i].begin, round.spans[i].end);
    verified.difference = difference_in(round);
    return verified;
}

// Compares the checksums of all ranks, on every rank, so that all of them report the same.
std::string StepChecksums::difference_in(const Round& round) const {
    std::vector<Pair> all(round.count * comm_.world());
    comm_.host_all_gather(all.data(), round.host, round.count * sizeof(Pair));
    for (size_t kind = 0; kind < kVerifiedKinds; kind++)
        for (const Row& row : round.rows[kind]) {
            const std::string found = find(static_cast<Verified>(kind), row, all, round.count);
            if (!found.empty()) return found;
        }
    return "";
}

std::string StepChecksums::find(Verified kind, const Row& row, const std::vector<Pair>& all, size_t count) const {
    const Wording& wording = kWording[static_cast<size_t>(kind)];
    const auto of = [&](int rank) { return all[static_cast<size_t>(rank) * count + row.index]; };
    for (int rank = 0; row.twice && rank < comm_.world(); rank++)
        if (of(rank).first != of(rank).second)
            return fmt::format("{}: {}{} had checksum {} {}, and {} {}", describe_ranks(comm_)[rank], wording.what,
                               row.name, text_of(of(rank).first), wording.first, text_of(of(rank).second),
                               wording.second);
    if (!row.everywhere) return "";
    std::map<uint64_t, int> ranks_with;  // number of ranks by checksum
    for (int rank = 0; rank < comm_.world(); rank++) ranks_with[of(rank).second]++;
    if (ranks_with.size() == 1) return "";
    const auto alike = [&](int rank) { return ranks_with[of(rank).second]; };
    int most = 0, other = 0;  // a rank in the largest group of equal ranks, and the first rank outside of it
    for (int rank = 1; rank < comm_.world(); rank++)
        if (alike(rank) > alike(most)) most = rank;
    while (of(other).second == of(most).second) other++;
    const std::string tie = 2 * alike(most) > comm_.world() ? "" : " (it is unknown which of them is wrong)";
    return fmt::format("{}: {}{} had checksum {} {}, where {} of {} ranks, {} among them, had {}{}",
                       describe_ranks(comm_)[other], wording.what, row.name, text_of(of(other).second), wording.second,
                       alike(most), comm_.world(), most, text_of(of(most).second), tie);
}

template <class Real>
Verification<Real>::Verification(Trainer<Real>& trainer)
    : trainer_(trainer),
      checksums_(trainer.comm(), checksums_per_step(trainer.table(), trainer.config().optimizer.averages()) +
                                     trainer.second_moments().size()) {
    const size_t tensors = trainer.fp8() ? static_cast<size_t>(trainer.fp8()->count()) : 0;
    if (tensors > 0) arena_.plan(&fp8_states_, tensors);
}

template <class Real>
void Verification<Real>::prepare(int64_t step) {
    if (!is_due(step) || checksums_.has_begun()) return;
    checksums_.begin(trainer_.stream());
    const auto timed = checksums_.timed(trainer_.stream());
    see_state(false);
}

template <class Real>
void Verification<Real>::before_optimizer(int64_t step) {
    if (!is_due(step)) return;
    {
        const auto timed = checksums_.timed(trainer_.stream());
        see_state(true);
        trainer_.gradients().finish_reduce(trainer_.stream());
        if (!trainer_.layout().is_sliced() && trainer_.comm().world() > 1) see_gradient_slices(Verified::totals, true);
    }
    checksums_.end(step, trainer_.stream());
}

// The first run leaves no trace: the second overwrites its gradients and loss sums, FP8 states are put back, and
// residuals of gradient casts are left alone. Working copies are made again in between. If they were wrong, the results
// of the two runs differ as well.
template <class Real>
void Verification<Real>::run_twice(const std::function<void()>& micro_step) {
    const stream_t stream = trainer_.stream();
    Fp8Registry* const fp8 = trainer_.fp8();
    {
        const auto timed = checksums_.timed(stream);
        const ProfileRange range("verify: the first time", stream);
        if (fp8) fp8->put_aside(fp8_states_, stream);
        see_weights(false);
        run(false, micro_step);
        see_results(false);
        if (fp8) fp8->put_back(fp8_states_, stream);
        trainer_.matmul().reset_counts();
        trainer_.model().linear().make_weights_again(stream);
        see_weights(true);
    }
    run(true, micro_step);
    const auto timed = checksums_.timed(stream);
    const ProfileRange range("verify: the second time", stream);
    see_results(true);
}

template <class Real>
void Verification<Real>::run(bool again, const std::function<void()>& micro_step) {
    Gradients& gradients = trainer_.gradients();
    gradients.observe([this, again](size_t unit, const float* gradient) {
        for (const ParameterTensor& tensor : trainer_.table().unit(unit).tensors)
            see(Verified::gradients, again,
                {"gradient of " + tensor.name, gradient + tensor.offset, tensor.count() * sizeof(float)}, false);
    });
    gradients.keep_residuals(again);
    micro_step();
    gradients.observe({});
}

template <class Real>
void Verification<Real>::see_state(bool again) {
    const ProfileRange range("verify state", trainer_.stream());
    const bool everywhere = !trainer_.layout().is_sliced();
    const auto see_part = [&](const DeviceSlice& part, bool on_all_ranks) {
        const void* const values = part.values.values;
        const size_t bytes = values ? part.slice.count * bytes_of(part.values.format) : 0;
        const std::string name = part.slice.part + " of " + part.slice.tensor;
        see(Verified::state, again, {name, values, bytes}, on_all_ranks);
        if (!part.values.scales) return;
        // From a multiple of 8 bytes on, with the scale before if need be.
        const bool is_odd = reinterpret_cast<uintptr_t>(part.values.scales) % 8 != 0;
        const size_t scales = bytes == 0 ? 0 : div_up(part.slice.count, kStateGroup) + is_odd;
        see(Verified::state, again, {"scales of " + name, part.values.scales - is_odd, scales * sizeof(float)},
            on_all_ranks);
    };
    for_each_state(trainer_, &ShardLayout::slice,
                   [&](size_t, const ParameterTensor&, const DeviceSlice& part) { see_part(part, everywhere); });
    for (const DeviceSlice& part : trainer_.second_moments()) see_part(part, false);
}

template <class Real>
void Verification<Real>::see_weights(bool again) {
    const bool whole = trainer_.layout().keeps_whole_weights();
    for (size_t u = 0; whole && u < trainer_.layout().units(); u++)  // waits for weights that are still on their way
        const UnitInUse<Real> unit(trainer_.weights(), u, trainer_.stream());
    for (const auto& copies : {trainer_.weights().working_copies(), trainer_.model().linear().weight_codes()})
        for (const NamedMemory& memory : copies) see(Verified::weights, again, memory, whole);
}

// Results of the first micro-step, with reduced gradients. The second run writes to the same memory.
template <class Real>
void Verification<Real>::see_results(bool again) {
    trainer_.gradients().finish_reduce(trainer_.stream());
    for (const NamedMemory& memory : trainer_.model().activations()) see(Verified::activations, again, memory, false);
    // NCCL may sum in a different order each time.
    const Comm& comm = trainer_.comm();
    if (std::string(comm.name()) == "nccl" && comm.reduce_order() == ReduceOrder::any) return;
    see(Verified::sums, again, {"losses", trainer_.model().train_loss_sum(), sizeof(double)}, false);
    see_gradient_slices(Verified::sums, again);
}

// This rank's slices of the gradients, tensor by tensor, from the last unit to the first.
template <class Real>
void Verification<Real>::see_gradient_slices(Verified kind, bool again) {
    const ShardLayout& layout = trainer_.layout();
    const bool everywhere = !layout.is_sliced() && kind != Verified::sums;  // sums may exist only on this rank
    for (size_t u = layout.units(); u-- > 0;) {
        const ShardLayout::Part held = layout.slice(u);
        const StateArray gradient = trainer_.gradients().slice(u);
        for (const ParameterTensor& tensor : trainer_.table().unit(u).tensors) {
            const ShardLayout::Part part = ShardLayout::overlap(held, tensor);
            see(kind, again,
                {"gradient of " + tensor.name, gradient.from(part.begin - held.begin).values,
                 part.count * bytes_of(gradient.format)},
                everywhere);
        }
    }
}

template class Verification<float>;
template class Verification<bf16>;

}  // namespace llmc
