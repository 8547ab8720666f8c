// Scales, histories, verdicts and saved state of FP8 tensors. See registry.h.
#include "llmc/fp8/registry.h"

#include <array>

#include "llmc/comm/agreement.h"
#include "llmc/device/trace.h"
#include "llmc/device/transfer.h"

namespace llmc {

// Block scales come from the block itself, so flags about histories and formats do not apply. The tensor's own scale is
// then that of its largest block, for the log.
static Fp8Config resolved(Fp8Config config) {
    if (scaling_of(config.recipe) == Fp8Scaling::tensor) return config;
    if (config.fallback.steps > 0)
        refuse(
            "--fp8-fallback needs --fp8-recipe delayed or current: with block scales, an outlier affects only its own "
            "block");
    config.grad = Fp8Grad::e4m3;
    config.pow2_scales = true;
    config.algorithm = AmaxAlgorithm::most_recent;
    config.history = 1;
    config.margin = 0;
    return config;
}

// The counts of a tensor that are added up over the ranks.
static std::array<uint64_t*, 7> counts_of(Fp8State& state, Fp8Watch& watch) {
    return {&state.elements, &state.saturated, &state.underflowed, &state.nonfinite,
            &watch.elements, &watch.saturated, &watch.underflowed};
}

Fp8Registry::Fp8Registry(const Fp8Config& config, const Comm& comm)
    : comm_(comm), config_(resolved(config)), scaling_(scaling_of(config.recipe)) {}

void Fp8Registry::plan(Arena& arena) {
    const size_t n = count();
    arena.plan(&states_, n);
    arena.plan(&evaluation_, n);
    arena.plan(&history_, n * config_.history);
    arena.plan(&bad_flag_, 1);
    if (comm_.world() > 1) {
        arena.plan(&packed_, 2 * n);
        arena.plan(&workspace_, comm_.all_reduce_workspace<float>(2 * n));
    }
    if (!falls_back()) return;
    arena.plan(&watches_, n);
    arena.plan(&verdicts_, n);
    arena.plan(&packed_counts_, 3 * n);
    if (comm_.world() > 1) arena.plan(&counts_workspace_, comm_.all_reduce_workspace<float>(3 * n));
}

void Fp8Registry::allocate(stream_t stream) {
    set_bytes(bad_flag_, 0, sizeof(int), stream);
    if (count() == 0) return;
    fp8_reset(states_, history_, count(), config_, stream);
    fp8_reset(evaluation_, history_, count(), config_, stream);
    if (!falls_back()) return;
    const size_t n = count();
    set_bytes(watches_, 0, n * sizeof(Fp8Watch), stream);
    for (VerdictSlot& slot : verdict_slots_) {
        slot.values = pinned<Fp8Verdict>(n);
        slot.copied = create_event();
    }
}

QuantizePass Fp8Registry::first_run(PassKind kind) const {
    if (kind == PassKind::recompute) return QuantizePass::replay;  // with forward's scale
    if (!uses_history() && !has_block_scales()) return QuantizePass::measure;
    return kind == PassKind::training ? train_pass() : QuantizePass::replay;
}

bool Fp8Registry::finish_run(QuantizePass& run, int layer, Fp8Role role, PassKind kind, stream_t stream) {
    if (run != QuantizePass::measure) return true;
    const bool evaluation = kind == PassKind::evaluation;
    fp8_set_current(evaluation ? evaluation_ : states_, tensor(layer, role), 1, config_, updates_, stream);
    // No end of a step clears this flag, which would keep all later evaluations from setting the scale.
    if (evaluation) set_bytes(&state(layer, role, kind)->bad, 0, sizeof(Fp8State::bad), stream);
    run = evaluation ? QuantizePass::replay : write_pass();
    return false;
}

void Fp8Registry::set_weight_scales(stream_t stream) {
    if (count() == 0) return;
    const ProfileRange range("FP8 weight scales", stream);
    // Other tensors have amax_now 0, which changes nothing.
    fp8_set_current(states_, 0, count(), config_, updates_, stream);
}

// Takes the maximum of every amax over the ranks. A tensor that is bad on one rank is bad on all.
void Fp8Registry::share(bool now, stream_t stream) {
    if (comm_.world() == 1 || count() == 0) return;
    const CommRange range("maximum of FP8 amaxes", comm_, stream);
    fp8_pack_amaxes(packed_, states_, count(), now, stream);
    comm_.all_reduce(packed_, 2 * static_cast<size_t>(count()), ReduceOp::max, workspace_, stream);
    fp8_unpack_amaxes(states_, packed_, count(), now, stream);
}

void Fp8Registry::check(stream_t stream) {
    if (count() == 0) return;
    share(false, stream);
    fp8_any_bad(bad_flag_, states_, count(), stream);
}

// Sums the counts of this step over the ranks and judges them.
void Fp8Registry::watch(stream_t stream) {
    const size_t n = count();
    fp8_pack_counts(packed_counts_, watches_, states_, count(), stream);
    if (comm_.world() > 1) {
        const CommRange range("sum FP8 counts", comm_, stream);
        comm_.all_reduce(packed_counts_, 3 * n, ReduceOp::sum, counts_workspace_, stream);
    }
    fp8_judge(verdicts_, watches_, packed_counts_, bad_flag_, count(), config_.fallback, stream);
    VerdictSlot& slot = verdict_slots_[watched_++ % 2];
    synchronize(slot.copied);
    copy_to_host(slot.values, verdicts_, n * sizeof(Fp8Verdict), stream);
    record(slot.copied, stream);
}

void Fp8Registry::finish_step(const float* change, stream_t stream) {
    calibrated_ = true;
    if (count() == 0) return;
    if (falls_back()) watch(stream);
    const ProfileRange range("FP8 scales", stream);
    fp8_finish_step(states_, history_, count(), config_, change, stream);
}

std::vector<Fp8Fallback> Fp8Registry::take_fallbacks() {
    std::vector<Fp8Fallback> fallbacks;
    if (watched_ - taken_ < 2) return fallbacks;
    const VerdictSlot& slot = verdict_slots_[taken_++ % 2];
    synchronize(slot.copied);
    for (int i = 0; i < count(); i++) {
        const Fp8Reason reason = static_cast<Fp8Reason>(slot.values[i].reason);
        const int layer = i / kFp8Roles;
        if (reason == Fp8Reason::none || has_left(layer)) continue;
        left_[layer] = true;
        fallbacks.push_back({layer, role_of(i), reason, slot.values[i].fraction});
    }
    return fallbacks;
}

std::string Fp8Registry::rule() const {
    return fmt::format("{} {} margin {}{} history {} dout {}", word_of(config_.recipe), word_of(config_.algorithm),
                       config_.margin, config_.pow2_scales ? " pow2" : "", config_.history, word_of(config_.grad));
}

Fp8Saved Fp8Registry::read_state(stream_t stream) const {
    Fp8Saved saved;
    saved.rule = rule();
    saved.calibrated = calibrated_;
    saved.watched = watched_ > taken_;
    for (int l = 0; l < layers(); l++)
        if (has_left(l)) saved.left.push_back(layer_name(l));
    const size_t n = count(), length = config_.history;
    if (n == 0) return saved;
    saved.tensors.resize(n);
    const std::vector<float> history = read_back(history_, n * length, stream);
    std::vector<Fp8State> states = read_back<Fp8State>(states_, n, stream);
    std::vector<Fp8Watch> watches(n);
    if (falls_back()) watches = read_back(watches_, n, stream);
    add_counts(states, watches);
    const VerdictSlot& slot = verdict_slots_[(watched_ + 1) % 2];
    if (saved.watched) synchronize(slot.copied);
    for (size_t i = 0; i < n; i++) {
        Fp8SavedTensor& tensor = saved.tensors[i];
        tensor.name = name(static_cast<int>(i));
        tensor.state = states[i];
        tensor.history.assign(history.data() + i * length, history.data() + (i + 1) * length);
        tensor.watch = watches[i];
        if (saved.watched) tensor.verdict = slot.values[i];
    }
    return saved;
}

// Sums the counts over the ranks. Those of a watch are unsigned differences, which may wrap; sums are still right.
void Fp8Registry::add_counts(std::vector<Fp8State>& states, std::vector<Fp8Watch>& watches) const {
    if (comm_.world() == 1) return;
    std::vector<uint64_t> mine;
    for (size_t i = 0; i < states.size(); i++)
        for (const uint64_t* count : counts_of(states[i], watches[i])) mine.push_back(*count);
    const std::vector<uint64_t> sums = sum_over_ranks(comm_, mine);
    size_t at = 0;
    for (size_t i = 0; i < states.size(); i++)
        for (uint64_t* count : counts_of(states[i], watches[i])) *count = sums[at++];
}

void Fp8Registry::mark_left(const std::vector<std::string>& layers_left) {
    for (const std::string& layer : layers_left)
        for (int l = 0; l < layers(); l++)
            if (layer_name(l) == layer) left_[l] = true;
}

// True if the saved state has the tensors and the rule of this run.
bool Fp8Registry::is_of(const Fp8Saved& saved) const {
    if (saved.rule != rule() || saved.tensors.size() != static_cast<size_t>(count())) return false;
    for (int i = 0; i < count(); i++)
        if (saved.tensors[i].name != name(i)) return false;
    return true;
}

bool Fp8Registry::restore(const Fp8Saved& saved, stream_t stream) {
    const size_t n = count(), length = config_.history;
    if (!is_of(saved)) return false;
    const std::vector<Fp8State> now = read_back<Fp8State>(states_, n, stream);
    std::vector<Fp8State> states(n);
    std::vector<Fp8Watch> watches(n);
    std::vector<float> history;
    for (size_t i = 0; i < n; i++) {
        const Fp8SavedTensor& tensor = saved.tensors[i];
        if (tensor.history.size() != length) return false;
        states[i] = tensor.state;
        const bool has_codes = role_of(static_cast<int>(i)) == Fp8Role::w && !left_[i / kFp8Roles];
        if (has_codes && !has_block_scales()) {  // written with this scale
            states[i].scale = now[i].scale;
            states[i].scale_inv = now[i].scale_inv;
        }
        watches[i] = tensor.watch;
        if (!comm_.is_main())  // the first rank takes the counts of all
            for (uint64_t* count : counts_of(states[i], watches[i])) *count = 0;
        history.insert(history.end(), tensor.history.begin(), tensor.history.end());
    }
    calibrated_ = saved.calibrated;
    if (n == 0) return true;
    write_through(states_, states.data(), n, stream);
    write_through(history_, history.data(), history.size(), stream);
    if (!falls_back()) return true;
    write_through(watches_, watches.data(), n, stream);
    if (!saved.watched) return true;
    for (size_t i = 0; i < n; i++) verdict_slots_[0].values[i] = saved.tensors[i].verdict;
    watched_ = 1;
    taken_ = 0;
    return true;
}

}  // namespace llmc
