// Searches for the flags that make a run fit into memory.
// build: per device
#include "llmc/commands/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/agreement.h"
#include "llmc/flags/flags.h"
#include "llmc/log/progress.h"
#include "llmc/train/staging.h"

namespace llmc {
namespace {

constexpr double kAsFast = 1.01;  // up to 1 % in predicted speed counts as equal
constexpr int kMostRanks = 1024;
constexpr Recompute kLevels[] = {Recompute::none, Recompute::gelu, Recompute::norm, Recompute::block};

// The flags that a change has. The higher a bit, the less a user wants it: the first four compute the same steps.
using Flags = unsigned;
constexpr Flags kRecompute = 1, kBatch = 2, kStage = 4, kOffload = 8, kMoments = 16, kMaster = 32, kGradients = 64,
                kFp8Moments = 128, kPrecision = 256;

struct Candidate {
    Options options;
    Flags flags = 0;
    double tokens_per_s = 0;  // 0: unknown
};

// True if every flag of `a` is one of `b`, which has more.
bool is_part_of(Flags a, Flags b) { return a != b && (a & b) == a; }

double speed_of(const PlannedRun& run, const StagePlan& plan) {
    return no_prediction_because(run).empty() ? 1e3 * static_cast<double>(run.tokens()) / predicted_ms(run, plan) : 0;
}

class Search {
public:
    // `level`: the recomputation asked for. The search may only raise it; auto follows from the other flags.
    Search(const Options& options, Recompute level, int ranks, const Room& room, const std::optional<PlannedCard>& card)
        : options_(options), level_(level), ranks_(ranks), room_(room), card_(card) {}

    // The best changes first.
    std::vector<Candidate> find() {
        search(options_, 0);
        if (best_.empty() && options_.precision == Precision::fp8) {
            Options bf16 = options_;
            bf16.precision = Precision::bf16;
            search(bf16, kPrecision);
        }
        return sorted(without_needless());
    }

private:
    // Every combination of stage, offload, formats and recomputation, with the largest batch that fits.
    void search(const Options& base, Flags flags) {
        search_formats(base, flags);
        if (base.offload != Offload::off || base.precision == Precision::fp32) return;
        for (const Offload choice : {Offload::residuals, Offload::optimizer, Offload::both}) {
            Options offloaded = base;
            offloaded.offload = choice;
            search_formats(offloaded, flags | kOffload);
        }
    }
    // The formats of the state as asked for, then one array after the other in a narrower one.
    static std::vector<std::pair<Flags, Options>> state_formats(const Options& base) {
        std::vector<std::pair<Flags, Options>> formats = {{0, base}};
        const auto narrow = [&](Flags flag, StateFormat Options::*array, StateFormat to) {
            if (base.*array >= to) return;
            formats.push_back(formats.back());
            formats.back().first |= flag;
            formats.back().second.*array = to;
        };
        const bool adamw = base.optimizer == OptimizerKind::adamw || is_muon(base.optimizer);
        if (adamw) narrow(kMoments, &Options::adam_moments, StateFormat::bf16);
        narrow(kMaster, &Options::master, StateFormat::bf16);
        if (base.clip_kind == ClipKind::norm && base.shard_within == 0)
            narrow(kGradients, &Options::gradients, StateFormat::bf16);
        if (adamw) narrow(kFp8Moments, &Options::adam_moments, StateFormat::fp8);
        return formats;
    }
    void search_formats(const Options& base, Flags flags) {
        const int last_stage = ranks_ > 1 ? 3 : base.zero;
        for (int stage = base.zero; stage <= last_stage; stage++)
            for (const auto& [formats, narrowed] : state_formats(base))
                for (const Recompute level : kLevels) {
                    if (level_ != Recompute::automatic && level < level_) continue;
                    Options o = narrowed;
                    o.zero = stage;
                    o.recompute = level;
                    add_largest_batch(o, flags | formats | (stage != base.zero ? kStage : 0) |
                                             (level_ != Recompute::automatic && level != level_ ? kRecompute : 0));
                }
    }
    void add_largest_batch(Options o, Flags flags) {
        for (; o.batch > 0; o.batch--) {
            const int64_t unit = int64_t{o.batch} * o.seq * ranks_;
            if (o.total_batch % unit != 0) continue;
            o.micro_steps = static_cast<int>(o.total_batch / unit);
            const StagePlan plan = plan_stage(o, ranks_, o.zero, room_);
            if (!plan.refused.empty() || !room_.holds(plan)) continue;
            add({o, flags | (o.batch != options_.batch ? kBatch : 0),
                 card_ ? speed_of(run_of(o, *card_, ranks_), plan) : 0});
            return;
        }
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
    std::map<Flags, Candidate> best_;  // the fastest with these flags
};

// The flags that turn `asked` into the candidate. A smaller batch keeps the tokens of a step.
std::string flags_text(const AskedRun& asked, const Candidate& c) {
    const Options& o = c.options;
    std::string text;
    const auto add = [&](const std::string& flag) { text += (text.empty() ? "" : " ") + flag; };
    if (c.flags & kBatch) add("-b " + std::to_string(o.batch));
    if ((c.flags & kBatch) && !asked.flags.given.count("total-batch")) add("-d " + std::to_string(o.total_batch));
    if (c.flags & kRecompute) add("-r " + std::string(word_of(o.recompute)));
    if (c.flags & kStage) add("-z " + std::to_string(o.zero));
    if (c.flags & kOffload) add("--offload " + std::string(word_of(o.offload)));
    if (c.flags & (kMoments | kFp8Moments)) add("--adam-moments " + std::string(word_of(o.adam_moments)));
    if (c.flags & kMaster) add("--master " + std::string(word_of(o.master)));
    if (c.flags & kGradients) add("--gradients " + std::string(word_of(o.gradients)));
    if (c.flags & kPrecision) add("--precision " + std::string(word_of(o.precision)));
    return text;
}

// Plans the run with these flags as a real one would be. Nothing if it is refused or does not fit.
std::optional<Change> change_with(const AskedRun& asked, const std::string& flags, int ranks, const Room& room,
                                  const std::optional<PlannedCard>& card) {
    try {
        Options o = asked.with(flags, ranks);
        const StagePlan plan = plan_stage(o, ranks, o.zero, room);
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

// The fewest ranks that make it fit with -z 3 alone, and fewer ones that also need other flags.
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
        o.zero = 3;
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
    set_flags(words_in(more), o);
    ResolveInputs inputs = surroundings;
    inputs.ranks = ranks;
    resolve(o, inputs);
    return o;
}

// Replaces -r auto, see choose_automatic().
static bool choose_recompute(Options& o, const std::function<bool(const Options&)>& fits) {
    if (o.recompute != Recompute::automatic) return fits(o);
    for (const Recompute level : kLevels) {
        o.recompute = level;
        if (!fits(o)) continue;
        if (level != Recompute::none)
            o.notes.push_back(fmt::format(
                "-r auto chose {}, the least recomputation that fits; a smaller -b may be faster", word_of(level)));
        return true;
    }
    return false;
}

bool choose_automatic(Options& o, const std::function<bool(const Options&)>& fits) {
    if (o.offload != Offload::automatic) return choose_recompute(o, fits);
    for (const Offload choice : {Offload::off, Offload::residuals, Offload::optimizer, Offload::both}) {
        Options chosen = o;
        chosen.offload = choice;
        if (!choose_recompute(chosen, fits)) continue;
        if (choice != Offload::off)
            chosen.notes.push_back(fmt::format("--offload auto chose {}, with which the run fits", word_of(choice)));
        o = chosen;
        return true;
    }
    o.offload = Offload::off;
    return choose_recompute(o, fits);
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
    return text + (changes.front().ranks == ranks ? "  --fit makes the first change\n" : "  more ranks are needed\n");
}

Options fit_plan(const AskedRun& asked, const Options& options, int ranks, const Room& room,
                 const std::optional<PlannedCard>& card) {
    const StagePlan before = plan_stage(options, ranks, options.zero, room);
    if (!before.refused.empty() || room.holds(before)) return options;
    for (const Change& change : changes_that_fit(asked, options, ranks, room, card)) {
        if (change.ranks != ranks) continue;
        Options fitted = asked.with(change.flags, ranks);
        fitted.notes.push_back(describe_fit(change, before, room));
        return fitted;
    }
    return options;
}

Options fit_into_memory(const AskedRun& asked, Options options, const Ranks& ranks) {
    const Comm& comm = ranks.comm;
    StagePlan plan = plan_rank(options, comm);
    const size_t libraries = ranks.libraries_to_come(options);
    const auto least = [&](size_t bytes) {  // of all ranks
        return static_cast<size_t>(-comm.host_max(-static_cast<int64_t>(std::min(bytes, size_t{INT64_MAX}))));
    };
    const Room room{least(ranks.device.free_memory), plan.reserve - std::min(plan.reserve, libraries),
                    least(available_host_memory() / static_cast<size_t>(comm.local_world()))};
    // Ranks may plan different sizes, because each owns other matrices with Muon, so the largest one decides.
    const auto fits = [&](const Options& o) {
        plan = plan_rank(o, comm);
        return room.bytes == 0 || comm.host_max(!room.holds(plan)) == 0;  // 0: unknown
    };
    if (choose_automatic(options, fits)) return options;
    check_host_memory(plan.memory, room.host);
    // The main rank chooses: measured rates, and so the order of changes, may differ between ranks.
    std::string flags, note;
    if (comm.is_main()) {
        AskedRun here = asked;
        if (std::string(comm.name()) != "nccl") here.flags.comm = CommKind::mpi;  // for plans of ranks
        Options planned = options;
        planned.comm = here.flags.comm;
        const std::vector<Change> changes =
            changes_that_fit(here, planned, comm.world(), room, card_to_plan_for(options));
        if (options.fit && !changes.empty() && changes.front().ranks == comm.world()) {
            flags = changes.front().flags;
            note = describe_fit(changes.front(), plan, room);
        } else {
            std::fputs(describe_changes(changes, comm.world()).c_str(), stdout);
        }
    }
    flags = broadcast_text(comm, flags);
    Options fitted = flags.empty() ? options : asked.with(flags, comm.world());
    choose_automatic(fitted, fits);  // with the real communicator
    check_memory(plan.memory, plan.shared_copy + ranks.libraries_to_come(fitted), room.bytes, ranks.device.name);
    if (comm.is_main()) fitted.notes.push_back(note);
    return fitted;
}

}  // namespace llmc
