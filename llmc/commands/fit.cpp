// Searches for the flags that make a run fit into memory.
// build: per device
#include "llmc/commands/planning.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "llmc/base/text.h"
#include "llmc/comm/agreement.h"
#include "llmc/flags/flags.h"
#include "llmc/run/ranks.h"
#include "llmc/train/staging.h"

namespace llmc {
namespace {

constexpr double kAsFast = 1.01;  // up to 1 % in predicted speed counts as equal
constexpr int kMostRanks = 1024;
constexpr Recompute kLevels[] = {Recompute::none, Recompute::gelu, Recompute::norm, Recompute::block};

// The flags of a change, from the least to the most disliked. The first four do not change the results of a step.
using Flags = unsigned;
constexpr Flags kRecompute = 1, kBatch = 2, kStage = 4, kOffload = 8, kMoments = 16, kMaster = 32, kGradients = 64,
                kFp8Moments = 128, kPrecision = 256;

struct Candidate {
    Options options;
    Flags flags = 0;
    double tokens_per_s = 0;  // 0: unknown
};

// True if `b` has all flags of `a`, and at least one more.
bool is_part_of(Flags a, Flags b) { return a != b && (a & b) == a; }

double speed_of(const PlannedRun& run, const StagePlan& plan) {
    return no_prediction_because(run).empty() ? 1e3 * static_cast<double>(run.tokens()) / predicted_ms(run, plan) : 0;
}

// True if the device that runs this, or the card that is planned for, has other memory than the host. (Plans for a card
// that shares the host's memory count what is offloaded as the card's.)
bool has_host_memory(const Options& o) { return o.gpu || LLMC_CUDA; }

class Search {
public:
    // `level`: the recomputation asked for. The search may only raise it; auto follows from the other flags.
    Search(const Options& options, Recompute level, int ranks, const Room& room, const std::optional<PlannedCard>& card)
        : options_(options), level_(level), ranks_(ranks), room_(room), card_(card), batches_(batches()) {}

    // The best changes first.
    std::vector<Candidate> find() {
        search(options_, 0);
        if (best_.empty() && options_.precision == Precision::fp8) {
            Options bf16 = options_;
            bf16.precision = Precision::bf16;
            search(bf16, kPrecision);
        }
        clear_status();
        return sorted(without_needless());
    }

private:
    // Tries every combination of stage, offload, formats and recomputation, with the largest batch that fits.
    void search(const Options& base, Flags flags) {
        search_formats(base, flags);
        if (!has_host_memory(base) || base.offload != Offload::off || base.precision == Precision::fp32) return;
        for (const Offload choice : {Offload::residuals, Offload::optimizer, Offload::both}) {
            Options offloaded = base;
            set_offload(offloaded, choice);
            search_formats(offloaded, flags | kOffload);
        }
    }
    // The requested formats of the state, then with one array after another in a smaller format.
    static std::vector<std::pair<Flags, Options>> state_formats(const Options& base) {
        const bool has_adam_moments = base.optimizer.kind == OptimizerKind::adamw || is_muon(base.optimizer.kind);
        const bool may_round_gradients = base.optimizer.clip_kind == ClipKind::norm && base.sharding.within == 0;
        constexpr auto adam_moments = [](Options& o) -> StateFormat& { return o.optimizer.adam_moments; };
        constexpr auto masters = [](Options& o) -> StateFormat& { return o.optimizer.masters; };
        constexpr auto gradients = [](Options& o) -> StateFormat& { return o.sharding.gradients; };
        const struct {
            bool possible;
            Flags flag;
            StateFormat& (*array)(Options&);
            StateFormat format;
        } steps[] = {{has_adam_moments, kMoments, adam_moments, StateFormat::bf16},
                     {true, kMaster, masters, StateFormat::bf16},
                     {may_round_gradients, kGradients, gradients, StateFormat::bf16},
                     {has_adam_moments, kFp8Moments, adam_moments, StateFormat::fp8}};
        std::vector<std::pair<Flags, Options>> formats = {{0, base}};
        for (const auto& [possible, flag, array, format] : steps) {
            auto [flags, narrower] = formats.back();
            if (!possible || array(narrower) >= format) continue;
            array(narrower) = format;
            formats.emplace_back(flags | flag, narrower);
        }
        return formats;
    }
    void search_formats(const Options& base, Flags flags) {
        const int last_stage = ranks_ > 1 ? 3 : base.sharding.stage;
        for (int stage = base.sharding.stage; stage <= last_stage; stage++)
            for (const auto& [formats, narrowed] : state_formats(base))
                for (const Recompute level : kLevels) {
                    const bool is_asked_for = level == level_ || level_ == Recompute::automatic;
                    if (level < level_ && !is_asked_for) continue;
                    Options o = narrowed;
                    o.sharding.stage = stage;
                    o.recompute = level;
                    add_largest_batch(o, flags | formats | (stage != base.sharding.stage ? kStage : 0) |
                                             (is_asked_for ? 0 : kRecompute));
                }
    }
    // The batch asked for and smaller ones, as far as they divide a step into whole micro-steps, smallest first.
    std::vector<int> batches() const {
        std::vector<int> batches;
        Options o = options_;
        for (o.batch = 1; o.batch <= options_.batch; o.batch++)
            if (o.total_batch % o.micro_step_tokens(ranks_) == 0) batches.push_back(o.batch);
        return batches;
    }
    // Returns the run with this batch if it fits.
    std::optional<Candidate> fitting(Options o, Flags flags, int batch) const {
        o.batch = batch;
        o.micro_steps = static_cast<int>(o.total_batch / o.micro_step_tokens(ranks_));
        show_status(fmt::format("what would fit: planning --world {} -z {} -b {}", ranks_, o.sharding.stage, batch));
        const StagePlan plan = plan_stage(o, ranks_, o.sharding.stage, room_);
        if (!plan.refused.empty() || !room_.holds(plan)) return std::nullopt;
        return Candidate{o, flags | (batch != options_.batch ? kBatch : 0),
                         card_ ? speed_of(run_of(o, *card_, ranks_), plan) : 0};
    }
    // A larger batch needs more memory, so halving the list finds the largest that fits.
    void add_largest_batch(const Options& o, Flags flags) {
        std::optional<Candidate> largest;
        size_t first = 0, end = batches_.size();
        while (first < end) {
            const size_t middle = first + (end - first) / 2;
            if (const std::optional<Candidate> candidate = fitting(o, flags, batches_[middle])) {
                largest = candidate;
                first = middle + 1;
            } else {
                end = middle;
            }
        }
        if (largest) add(*largest);
    }
    void add(const Candidate& candidate) {
        const auto [found, is_new] = best_.emplace(candidate.flags, candidate);
        if (!is_new && candidate.tokens_per_s > found->second.tokens_per_s) found->second = candidate;
    }
    std::vector<Candidate> without_needless() const {
        std::vector<Candidate> kept;
        for (const auto& [flags, candidate] : best_) {
            const auto is_needless = [&, flags = flags, speed = candidate.tokens_per_s](const auto& other) {
                return is_part_of(other.first, flags) && kAsFast * other.second.tokens_per_s >= speed;
            };
            if (std::none_of(best_.begin(), best_.end(), is_needless)) kept.push_back(candidate);
        }
        return kept;
    }
    // Repeatedly takes the one with the most harmless flags among those within 1 % of the fastest.
    static std::vector<Candidate> sorted(std::vector<Candidate> candidates) {
        std::vector<Candidate> result;
        while (!candidates.empty()) {
            double fastest = 0;
            for (const Candidate& c : candidates) fastest = std::max(fastest, c.tokens_per_s);
            auto best = candidates.end();
            for (auto c = candidates.begin(); c != candidates.end(); ++c)
                if (kAsFast * c->tokens_per_s >= fastest && (best == candidates.end() || c->flags < best->flags))
                    best = c;
            result.push_back(*best);
            candidates.erase(best);
        }
        return result;
    }

    const Options& options_;
    const Recompute level_;
    const int ranks_;
    const Room& room_;
    const std::optional<PlannedCard>& card_;
    const std::vector<int> batches_;
    std::map<Flags, Candidate> best_;  // the fastest with these flags
};

// The flags that turn `asked` into the candidate. A smaller batch keeps the tokens of a step.
std::string flags_text(const AskedRun& asked, const Candidate& c) {
    constexpr std::pair<Flags, const char*> kNames[] = {
        {kBatch, "batch"},   {kBatch, "total-batch"},   {kRecompute, "recompute"},
        {kStage, "zero"},    {kOffload, "offload"},     {kMoments | kFp8Moments, "adam-moments"},
        {kMaster, "master"}, {kGradients, "gradients"}, {kPrecision, "precision"}};
    std::string text;
    for (const auto& [changed, name] : kNames) {
        const Flag& flag = *find_flag(name);
        if (!(c.flags & changed) || (flag.long_name == "total-batch" && asked.flags.given.count(name))) continue;
        text += (text.empty() ? "" : " ") +
                (flag.short_name ? fmt::format("-{:c}", flag.short_name) : "--" + flag.long_name);
        text += " " + flag_text(flag, c.options);
    }
    return text;
}

// Plans the run with these flags as a real one would be. Nothing if it is refused or does not fit.
std::optional<Change> change_with(const AskedRun& asked, const std::string& flags, int ranks, const Room& room,
                                  const std::optional<PlannedCard>& card) {
    try {
        Options o = asked.with(flags, ranks);
        const StagePlan plan = plan_stage(o, ranks, o.sharding.stage, room);
        if (!plan.refused.empty() || !room.holds(plan)) return std::nullopt;
        Change change{flags, ranks, room.needed(plan), {}, 0, {}};
        if (!card) return change;
        o.recompute = plan.recompute;
        const PlannedRun run = run_of(o, *card, ranks);
        change.tokens_per_s = speed_of(run, plan);
        if (change.tokens_per_s == 0) return change;
        change.step_ms = 1e3 * static_cast<double>(run.tokens()) / change.tokens_per_s;
        change.run_hours = length_of(o, run, plan).hours;
        return change;
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_flags) throw;
        return std::nullopt;
    }
}

// Adds the fewest ranks with which the run fits with only -z 3, and fewer ranks that also need other flags.
void add_more_ranks(const AskedRun& asked, const Options& options, int ranks, const Room& room,
                    const std::optional<PlannedCard>& card, std::vector<Change>& changes) {
    bool has_fewer = false;
    for (int n = 2 * ranks; n <= kMostRanks; n *= 2) {
        const std::string flags = fmt::format("--world {} -z 3", n);
        if (const std::optional<Change> change = change_with(asked, flags, n, room, card)) {
            changes.push_back(*change);
            return;
        }
        if (has_fewer) continue;
        Options o = options;
        o.sharding.stage = 3;
        if (!asked.flags.given.count("total-batch")) o.total_batch = int64_t{o.batch} * o.seq * n;
        for (const Candidate& candidate : Search(o, asked.flags.recompute, n, room, card).find()) {
            const std::optional<Change> change =
                change_with(asked, flags + " " + flags_text(asked, candidate), n, room, card);
            if (!change) continue;
            changes.push_back(*change);
            has_fewer = true;
            break;
        }
    }
}

// Says which change --fit made.
std::string describe_fit(const Change& change, const StagePlan& before, const Room& room) {
    return fmt::format("--fit: {}: a rank needs {} instead of {}, and has {}", change.flags, format_bytes(change.bytes),
                       format_bytes(room.needed(before)), format_bytes(room.bytes));
}

}  // namespace

Options AskedRun::with(const std::string& more, int ranks) const {
    Options o = flags;
    set_flags(read_flags(words_in(more), all_flags(), ""), o);
    ResolveInputs inputs = surroundings;
    inputs.ranks = ranks;
    resolve(o, inputs);
    return o;
}

AutomaticChoice choose_automatic(const Options& asked, const std::function<StagePlan(const Options&)>& plan_of,
                                 const std::function<bool(const StagePlan&)>& fits) {
    const bool any_level = asked.recompute == Recompute::automatic, any_offload = asked.offload == Offload::automatic;
    AutomaticChoice choice;
    for (const Offload offload : {Offload::off, Offload::residuals, Offload::optimizer, Offload::both}) {
        if (!any_offload && offload != asked.offload) continue;
        for (const Recompute level : kLevels) {
            if (!any_level && level != asked.recompute) continue;
            Options o = asked;
            set_offload(o, offload);
            o.recompute = level;
            const StagePlan plan = plan_of(o);
            const bool fit = fits(plan);
            // If nothing fits, the choice is the most recomputation without offloading.
            if (fit || !any_offload || offload == Offload::off) choice = {o, plan, fit};
            if (!fit) continue;
            if (any_level && level != Recompute::none)
                choice.options.notes.push_back(fmt::format("-r auto chose {}, the least recomputation that fits{}",
                                                           word_of(level),
                                                           o.batch > 1 ? "; a smaller -b may be faster" : ""));
            if (any_offload && offload != Offload::off)
                choice.options.notes.push_back(
                    fmt::format("--offload auto chose {}, with which the run fits", word_of(offload)));
            return choice;
        }
    }
    return choice;
}

std::vector<Change> changes_that_fit(const AskedRun& asked, const Options& options, int ranks, const Room& room,
                                     const std::optional<PlannedCard>& card) {
    std::vector<Change> changes;
    for (const Candidate& candidate : Search(options, asked.flags.recompute, ranks, room, card).find())
        if (const std::optional<Change> change = change_with(asked, flags_text(asked, candidate), ranks, room, card))
            changes.push_back(*change);
    add_more_ranks(asked, options, ranks, room, card, changes);
    return changes;
}

std::string describe_changes(const std::vector<Change>& changes, int ranks) {
    if (changes.empty())
        return fmt::format(
            "Nothing that -r, -b, --offload, --adam-moments, --master, --gradients, --precision bf16 and up to {} "
            "ranks can change makes it fit.\n",
            kMostRanks);
    size_t width = 32;
    for (const Change& change : changes) width = std::max(width, change.flags.size());
    const bool has_times = changes.front().step_ms.has_value(), has_hours = changes.front().run_hours.has_value();
    std::string text = fmt::format("What would fit, best first\n  {:{}} {:>10}", "", width, "memory");
    if (has_times) text += fmt::format(" {:>12} {:>14}", "step", "tok/s");
    if (has_hours) text += fmt::format(" {:>12}", "run");
    text += "\n";
    for (const Change& change : changes) {
        text += fmt::format("  {:{}} {:>10}", change.flags, width, format_bytes(change.bytes));
        if (change.step_ms)
            text += fmt::format(" {:>9.1f} ms {:>14}", *change.step_ms, with_commas(std::llround(change.tokens_per_s)));
        if (change.run_hours) text += fmt::format(" {:>12}", format_duration(3600 * *change.run_hours));
        text += "\n";
    }
    if (has_times) text += "  step, tok/s: predicted, of all ranks\n";
    return text + (changes.front().ranks == ranks ? "  --fit makes the first change\n" : "  it needs more GPUs\n");
}

Options fit_plan(const AskedRun& asked, const Options& options, int ranks, const Room& room,
                 const std::optional<PlannedCard>& card) {
    const StagePlan before = plan_stage(options, ranks, options.sharding.stage, room);
    if (!before.refused.empty() || room.holds(before)) return options;
    for (const Change& change : changes_that_fit(asked, options, ranks, room, card)) {
        if (change.ranks != ranks) continue;
        Options fitted = asked.with(change.flags, ranks);
        fitted.notes.push_back(describe_fit(change, before, room));
        return fitted;
    }
    return options;
}

// The room of the rank that has the least. A collective.
static Room least_room(const Options& o, const Ranks& ranks) {
    const Comm& comm = ranks.comm;
    const auto least = [&](size_t bytes) {
        return static_cast<size_t>(-comm.host_max(-static_cast<int64_t>(std::min(bytes, size_t{INT64_MAX}))));
    };
    const size_t reserve = plan_rank(o, comm).reserve;
    return {least(ranks.device.free_memory), reserve - std::min(reserve, ranks.libraries_to_come(o)),
            least(available_host_memory() / static_cast<size_t>(comm.local_world()))};
}

// The change that --fit makes. Without --fit, or if there is none for these ranks, prints what would fit.
static std::optional<Change> change_to_make(AskedRun asked, Options options, const Comm& comm, const Room& room) {
    if (std::string(comm.name()) != "nccl") asked.flags.comm = CommKind::mpi;  // for plans of ranks
    options.comm = asked.flags.comm;
    const std::vector<Change> changes = changes_that_fit(asked, options, comm.world(), room, card_to_plan_for(options));
    if (options.fit && !changes.empty() && changes.front().ranks == comm.world()) return changes.front();
    std::fputs(describe_changes(changes, comm.world()).c_str(), stdout);
    return std::nullopt;
}

Options fit_into_memory(const AskedRun& asked, const Options& options, const Ranks& ranks) {
    const Comm& comm = ranks.comm;
    const Room room = least_room(options, ranks);
    const auto plan_of = [&](const Options& o) { return plan_rank(o, comm); };
    // Ranks may plan different sizes, because each owns other matrices with Muon, so the largest one decides.
    const auto fits = [&](const StagePlan& plan) {
        return room.bytes == 0 || comm.host_max(!room.holds(plan)) == 0;  // 0: unknown
    };
    const AutomaticChoice wanted = choose_automatic(options, plan_of, fits);
    if (wanted.fits) return wanted.options;
    check_host_memory(wanted.plan.memory, room.host);
    // The main rank chooses: measured rates, and so the order of changes, may differ between ranks.
    std::optional<Change> change;
    if (comm.is_main()) change = change_to_make(asked, wanted.options, comm, room);
    const std::string flags = broadcast_text(comm, change ? change->flags : "");
    AutomaticChoice fitted =
        choose_automatic(flags.empty() ? wanted.options : asked.with(flags, comm.world()), plan_of, fits);
    check_memory(fitted.plan.memory, fitted.plan.shared_copy + ranks.libraries_to_come(fitted.options), room.bytes,
                 ranks.device.name, !ranks.device.is_host);
    if (change) fitted.options.notes.push_back(describe_fit(*change, wanted.plan, room));
    return fitted.options;
}

}  // namespace llmc
