// The ranks' agreement after the card check: which kernels to replace, and the ways to make products.
#include "llmc/check/card_check.h"

#include <algorithm>

#include "llmc/base/clock.h"
#include "llmc/base/json.h"
#include "llmc/comm/agreement.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// Another algorithm replaces the library's first only if it takes less than this share of its time, so that chance does
// not decide between algorithms of about the same speed.
constexpr double kWorthChanging = 0.95;

// A candidate is used if it takes less than this share of the time of what it replaces.
constexpr double kWorthUsing = 0.97;

// "rank 3 on node7: ", or "" on a single rank.
std::string who(const Comm& comm) {
    return comm.world() == 1 ? "" : fmt::format("rank {} on {}: ", comm.rank(), comm.host(comm.rank()));
}

// ---- one card ------------------------------------------------------------------------------------------------------

// Sets result.findings for all requested items: takes those that are stored, checks the others, and stores them.
void find(const CardCheck& check, CardCheckResult& result) {
    const KeptResults keeper(check.cache, check.identity);
    std::vector<std::string> names;
    for (const CheckItem& item : kernel_checks(check.request.use)) names.push_back(item.name);
    for (const Product& product : check.request.products) names.push_back(check.request.key(product));
    CheckRequest request = check.request;
    request.found = result.findings;
    if (!check.force)
        for (const auto& [name, finding] : keeper.load()) request.found.emplace(name, finding);
    const auto is_known = [&](const std::string& name) {
        const auto found = request.found.find(name);
        if (found == request.found.end()) return false;
        const auto preferred = request.preferred.find(name);
        return preferred == request.preferred.end() ||
               std::any_of(found->second.trials.begin(), found->second.trials.end(),
                           [&](const ProductTrial& trial) { return trial.way.algorithm == preferred->second; });
    };
    result.kept = std::all_of(names.begin(), names.end(), is_known);
    if (!result.kept) {
        for (auto place = request.found.begin(); place != request.found.end();)
            place = is_known(place->first) ? std::next(place) : request.found.erase(place);
        request.found = supervise(request, check.program, check.alive);
        Findings made;
        for (const std::string& name : names) made.emplace(name, request.found.at(name));
        result.keeping_problem = keeper.add(made);
    }
    for (const std::string& name : names) result.findings[name] = request.found.at(name);
}

// ---- all ranks together --------------------------------------------------------------------------------------------

bool is_right(const Finding& finding, const ProductChoice& way) {
    return std::any_of(finding.trials.begin(), finding.trials.end(),
                       [&](const ProductTrial& trial) { return trial.way == way && trial.problem.empty(); });
}
bool was_tried(const Finding& finding, const ProductChoice& way) {
    return std::any_of(finding.trials.begin(), finding.trials.end(),
                       [&](const ProductTrial& trial) { return trial.way == way; });
}

// The best way to compute a product among those that no rank refused, or nullptr if there is none.
const ProductTrial* best_way(const Finding& finding, const std::string& preferred,
                             const std::vector<ProductChoice>& refused) {
    const ProductTrial* best = nullptr;
    for (const ProductTrial& trial : finding.trials) {
        if (!trial.problem.empty() || std::find(refused.begin(), refused.end(), trial.way) != refused.end()) continue;
        if (!preferred.empty() && trial.way.algorithm == preferred) return &trial;
        const bool worse = best && falls_back(trial.way) && !falls_back(best->way);
        if (!best || (!worse && trial.ms > 0 && trial.ms < kWorthChanging * best->ms)) best = &trial;
    }
    return best;
}

// Rank 0's proposal for all ranks.
struct Proposal {
    ProductChoices choices;
    std::set<std::string> hopeless;  // keys of products that no way is right for
};

using Refused = std::map<std::string, std::vector<ProductChoice>>;

Proposal propose(const CheckRequest& request, const Findings& findings, const Refused& refused) {
    Proposal proposal;
    for (const Product& product : request.products) {
        const std::string key = request.key(product);
        const auto preferred = request.preferred.find(key);
        const auto objections = refused.find(key);
        const ProductTrial* best =
            best_way(findings.at(key), preferred == request.preferred.end() ? "" : preferred->second,
                     objections == refused.end() ? std::vector<ProductChoice>{} : objections->second);
        if (best)
            proposal.choices[key] = best->way;
        else
            proposal.hopeless.insert(key);
    }
    return proposal;
}

// Keys of products that this rank's card computes wrong in the proposed way. Tries ways that have not been tried here.
std::vector<std::string> objections(const CardCheck& check, const ProductChoices& proposed, CardCheckResult& result) {
    CardCheck more = check;
    more.force = false;
    more.request.preferred.clear();
    for (const auto& [key, way] : proposed)
        if (!was_tried(result.findings.at(key), way)) more.request.preferred[key] = way.algorithm;
    if (!more.request.preferred.empty()) find(more, result);
    std::vector<std::string> keys;
    for (const auto& [key, way] : proposed)
        if (!is_right(result.findings.at(key), way)) keys.push_back(key);
    return keys;
}

Proposal agree_on_products(const CardCheck& check, const Comm& comm, CardCheckResult& result) {
    Refused refused;
    for (;;) {
        Proposal proposal;
        if (comm.is_main()) proposal = propose(check.request, result.findings, refused);
        const Json told = parse_json<Json>(broadcast_text(
            comm, json_text(Json{{"choices", choices_json(proposal.choices)}, {"hopeless", proposal.hopeless}})));
        proposal.choices = choices_from_json(told["choices"]);
        proposal.hopeless = told["hopeless"].get<std::set<std::string>>();
        std::vector<std::string> mine;
        do_together(comm, [&] { mine = objections(check, proposal.choices, result); });
        bool all_agree = true;
        for (const std::string& text : gather_texts(comm, json_text(Json(mine))))
            for (const std::string key : parse_json<Json>(text)) {
                refused[key].push_back(proposal.choices.at(key));
                all_agree = false;
            }
        if (all_agree) return proposal;
    }
}

// Rank 0 compares the candidates' times with those of what they replace, in which the way that was agreed on stands for
// the library's first way.
void compare_candidates(const CheckRequest& request, const std::vector<CheckItem>& items, const Comm& comm,
                        const Proposal& agreed, CardCheckResult& result) {
    Json slow = Json::array(), lines = Json::array();
    for (const CheckItem& item : items) {
        if (!item.product) continue;
        const std::string key = request.key(*item.product);
        const std::vector<ProductTrial>& trials = result.findings.at(key).trials;
        const double first = trials.empty() ? 0 : trials.front().ms;
        double product = 0;
        const auto choice = agreed.choices.find(key);
        for (const ProductTrial& trial : trials)
            if (choice != agreed.choices.end() && trial.way == choice->second) product = trial.ms;
        const CandidateTimes times = result.findings.at(item.name).times;
        const double replaced = times.replaced - first + product;
        const bool is_timed = first > 0 && product > 0 && times.ms > 0;
        const bool is_faster = is_timed && times.ms < kWorthUsing * replaced;
        if (!is_faster) slow.push_back(item.variant);
        if (is_timed)
            lines.push_back(
                fmt::format("{} takes {:.3g} ms, and what it replaces {:.3g} ms", item.variant, times.ms, replaced));
    }
    const Json told = parse_json<Json>(broadcast_text(comm, json_text(Json{{"slow", slow}, {"lines", lines}})));
    result.slow_variants = told["slow"].get<std::set<std::string>>();
    result.comparisons = told["lines"].get<std::vector<std::string>>();
}

// The lines of all ranks, without repetitions.
std::vector<std::string> gather_lines(const Comm& comm, const std::vector<std::string>& mine) {
    std::vector<std::string> all;
    for (const std::string& text : gather_texts(comm, json_text(Json(mine))))
        for (const std::string line : parse_json<Json>(text))
            if (std::find(all.begin(), all.end(), line) == all.end()) all.push_back(line);
    return all;
}

// Sorts the wrong kernels of this card into those that have a replacement and those that have none.
void sort_problems(const std::vector<CheckItem>& items, const Comm& comm, CardCheckResult& result) {
    std::vector<std::string> variants, notes, refusals;
    for (const CheckItem& item : items) {
        const Finding& finding = result.findings.at(item.name);
        result.items++;
        if (finding.problem.empty()) {
            result.right++;
            continue;
        }
        const std::string line = who(comm) + item.name + ": " + finding.problem;
        if (item.variant.empty()) {
            refusals.push_back(line);
        } else {
            variants.push_back(item.variant);
            notes.push_back(line);
        }
    }
    for (const std::string& variant : gather_lines(comm, variants)) result.wrong_variants.insert(variant);
    result.notes = gather_lines(comm, notes);
    result.refusals = gather_lines(comm, refusals);
}

// Counts the right products, notes the trials that failed, and lists the products that no way is right for.
void describe_products(const CheckRequest& request, const Comm& comm, const Proposal& agreed, CardCheckResult& result) {
    std::vector<std::string> notes;
    for (const Product& product : request.products) {
        const std::string key = request.key(product);
        const Finding& finding = result.findings.at(key);
        result.items++;
        if (agreed.hopeless.count(key)) result.wrong_products.push_back(product);
        for (size_t i = 0; i < finding.trials.size(); i++) {
            const ProductTrial& trial = finding.trials[i];
            if (!trial.problem.empty())
                notes.push_back(fmt::format("{}{}, attempt {}{}: {}", who(comm), key, i + 1,
                                            trial.way.separate_bias ? ", bias added by a separate kernel" : "",
                                            trial.problem));
        }
        if (finding.trials.empty()) notes.push_back(who(comm) + key + ": " + finding.problem);
        if (!agreed.hopeless.count(key)) result.right++;
    }
    for (const std::string& note : gather_lines(comm, notes)) result.notes.push_back(note);
}

}  // namespace

CardCheckResult check_card(const CardCheck& check, const Comm& comm) {
    const double begin = monotonic_seconds();
    CardCheckResult result;
    do_together(comm, [&] { find(check, result); });
    const std::vector<CheckItem> items = kernel_checks(check.request.use);
    sort_problems(items, comm, result);
    const Proposal agreed = agree_on_products(check, comm, result);
    result.choices = agreed.choices;
    describe_products(check.request, comm, agreed, result);
    compare_candidates(check.request, items, comm, agreed, result);
    std::erase_if(result.choices, [](const auto& choice) { return choice.second == ProductChoice{}; });
    result.seconds = monotonic_seconds() - begin;
    return result;
}

}  // namespace llmc
