// The ranks' agreement after the card check: which kernels to replace, and the ways to make products.
#include "llmc/check/card_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/clock.h"
#include "llmc/base/json.h"
#include "llmc/comm/agreement.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// Another algorithm replaces the library's first only if it takes less than this share of its time, so that chance does
// not decide between algorithms of about the same speed.
constexpr double kWorthChanging = 0.95;

// "rank 3 on node7: ", or "" on a single rank.
std::string who(const Comm& comm) {
    return comm.world() == 1 ? "" : fmt::format("rank {} on {}: ", comm.rank(), comm.host(comm.rank()));
}

// ---- one card ------------------------------------------------------------------------------------------------------

// Sets result.findings for all requested items: takes those that are stored, checks the others, and stores them.
void find(const CardCheck& check, CardCheckResult& result) {
    CheckRequest request = check.request;
    Findings items;  // at first, with their families and variants alone
    for (const CheckItem& item : kernel_checks(request.use)) items[item.name] = {item.family, item.variant, "", 0, {}};
    for (const Product& product : request.products) items[request.key(product)] = {kProductFamily, "", "", 0, {}};
    request.found = result.findings;
    if (!check.force) request.found.merge(check.kept.load());
    // A preferred algorithm that was not tried has to be.
    std::erase_if(request.found, [&](const auto& found) {
        const auto& [name, finding] = found;
        const auto preferred = request.preferred.find(name);
        return preferred != request.preferred.end() &&
               std::none_of(finding.trials.begin(), finding.trials.end(),
                            [&](const ProductTrial& trial) { return trial.way.algorithm == preferred->second; });
    });
    result.kept =
        std::all_of(items.begin(), items.end(), [&](const auto& item) { return request.found.count(item.first) > 0; });
    if (!result.kept) request.found = supervise(request, kThisProgram, check.alive);
    for (auto& [name, item] : items) {
        Finding& found = request.found.at(name);
        found.family = item.family;
        found.variant = item.variant;
        item = found;
        result.findings[name] = found;
    }
    if (!result.kept) result.keeping_problem = check.kept.add(items);
}

// ---- all ranks together --------------------------------------------------------------------------------------------

// The lines of all ranks, without repetitions.
std::vector<std::string> gather_lines(const Comm& comm, const std::vector<std::string>& mine) {
    std::vector<std::string> all;
    for (const std::string& text : gather_texts(comm, json_text(Json(mine))))
        for (const std::string line : parse_json<Json>(text))
            if (std::find(all.begin(), all.end(), line) == all.end()) all.push_back(line);
    return all;
}

// Rank 0's value.
Json broadcast_json(const Comm& comm, const Json& json) {
    return parse_json<Json>(broadcast_text(comm, json_text(json)));
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
        const auto objections = refused.find(key);
        const ProductTrial* best =
            best_way(findings.at(key), request.preferred_for(key),
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
        if (!result.findings.at(key).trial_of(way)) more.request.preferred[key] = way.algorithm;
    if (!more.request.preferred.empty()) find(more, result);
    std::vector<std::string> keys;
    for (const auto& [key, way] : proposed) {
        const ProductTrial* const trial = result.findings.at(key).trial_of(way);
        if (!trial || !trial->problem.empty()) keys.push_back(key);
    }
    return keys;
}

Proposal agree_on_products(const CardCheck& check, const Comm& comm, CardCheckResult& result) {
    Refused refused;
    for (;;) {
        Proposal proposal;
        if (comm.is_main()) proposal = propose(check.request, result.findings, refused);
        const Json told = broadcast_json(comm, {{"choices", proposal.choices}, {"hopeless", proposal.hopeless}});
        proposal.choices = told["choices"];
        proposal.hopeless = told["hopeless"];
        std::vector<std::string> mine;
        do_together(comm, [&] { mine = objections(check, proposal.choices, result); });
        const std::vector<std::string> all = gather_lines(comm, mine);
        if (all.empty()) return proposal;
        for (const std::string& key : all) refused[key].push_back(proposal.choices.at(key));
    }
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
    std::erase_if(result.choices, [](const auto& choice) { return choice.second == ProductChoice{}; });
    result.seconds = monotonic_seconds() - begin;
    return result;
}

}  // namespace llmc
