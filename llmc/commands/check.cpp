// The card check of a run: what it asks for, what it replaces, and what it prints.
#include "llmc/commands/check.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/check/product_checks.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/comm/comm.h"
#include "llmc/commands/planning.h"
#include "llmc/kernels/variants.h"
#include "llmc/log/provenance.h"
#include "llmc/plan/cards.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::string program_fingerprint() {
    std::ostringstream read;
    read << std::ifstream(kThisProgram, std::ios::binary).rdbuf();
    const std::string program = read.str();
    return fmt::format("{:016x}", checksum(program.data(), program.size()));
}

// Everything that results depend on, in addition to the items themselves.
Json identity_of(const DeviceInfo& device) {
    Json json = {{"device", device.name},
                 {"uuid", device.uuid},
                 {"compute_capability", device.compute_capability},
                 {"program", program_fingerprint()}};
    json.update(versions_json());
    json.erase("nccl");  // its version is known only once it is in use
    return json;
}

KeptResults kept_results(const DeviceInfo& device) { return {cache_directory(), identity_of(device)}; }

std::map<std::string, std::string> algorithms_of(const ProductChoices& choices) {
    std::map<std::string, std::string> algorithms;
    for (const auto& [key, choice] : choices) algorithms[key] = choice.algorithm;
    return algorithms;
}

// Notes that the kernels differ from those of the checkpoint's run, which may round differently.
void compare_kernels(const Options& o, const Resumed* resumed, std::vector<std::string>& notes) {
    if (!resumed) return;
    const Json then = resumed->checkpoint->manifest().run->value("kernels", Json());
    const Json now = o.kernel_set.names();
    if (then.is_array() && then != now)
        notes.push_back(
            fmt::format("the checkpoint's run used the kernels {}, this run uses {}; results may round differently",
                        json_text(then), json_text(now)));
}

// The products of the checkpoint's run, if the library has the same version.
ProductChoices products_of(const Resumed* resumed, std::vector<std::string>& notes) {
    if (!resumed) return {};
    const Manifest& manifest = resumed->checkpoint->manifest();
    const ProductChoices choices = manifest.run->value("products", Json::object());
    if (choices.empty()) return {};
    const std::string now = versions_json().value("cublaslt", ""), then = manifest.versions->value("cublaslt", "");
    if (!now.empty() && then == now) return choices;
    notes.push_back(
        fmt::format("the checkpoint's matmuls ran in cuBLASLt {}; with this version their bits may differ", then));
    return {};
}

// ---- fallbacks -----------------------------------------------------------------------------------------------------

struct Fallbacks {
    std::vector<std::string> lines;
    int count = 0;
    void add(const std::string& line) {
        lines.push_back(line);
        count++;
    }
};

void leave_out_kernels(Options& o, const std::set<std::string>& wrong, Fallbacks& fallbacks) {
    for (const std::string& name : wrong) {
        if (name == kAllOfFp8) continue;
        const KernelVariantEntry& entry = kernel_variant(name);
        if (!o.kernel_set.has(entry.variant)) continue;
        o.kernel_set.remove(entry.variant);
        fallbacks.add(fmt::format("{} falls back to {}", entry.name, entry.counterpart));
    }
}

void fall_back_to_bf16(Options& o, Fallbacks& fallbacks) {
    fallbacks.add("FP8 falls back to BF16 altogether: --precision bf16");
    o.precision = Precision::bf16;
    for (const KernelVariantEntry& entry : kernel_variants())
        if (entry.formats == Formats::fp8) o.kernel_set.remove(entry.variant);
}

// Replaces what is wrong. Returns false if nothing was.
bool replace_wrong(Options& o, const CardCheckResult& result, const StagePlan& plan, Fallbacks& fallbacks) {
    const int before = fallbacks.count;
    if (result.wrong_variants.count(kAllOfFp8)) {
        fall_back_to_bf16(o, fallbacks);
        return true;
    }
    leave_out_kernels(o, result.wrong_variants, fallbacks);
    std::set<std::string> kinds;
    for (const Product& product : result.wrong_products)
        if (is_fp8(product.type)) kinds.insert(plan.products.at(product).begin(), plan.products.at(product).end());
    for (const std::string& kind : kinds) {
        fallbacks.add("layers " + kind + " fall back to BF16");
        o.fp8_layers.text += ",-" + kind;
        o.fp8_layers.value.push_back({kind, false});
    }
    const ModelConfig& model = o.model_config;
    if (!kinds.empty() && fp8_layers(o.fp8_layers.value, model.layers, linear_names(model)).empty())
        fall_back_to_bf16(o, fallbacks);
    return fallbacks.count > before;
}

// Reports products that run by another algorithm than the fastest. One that has two such reasons counts once.
void add_products(const ProductChoices& choices, Fallbacks& fallbacks) {
    for (const auto& [key, choice] : choices) {
        if (choice.separate_bias) fallbacks.lines.push_back(key + ": falls back to a separate kernel for the bias");
        if (choice.workspace && *choice.workspace == 0)
            fallbacks.lines.push_back(key + ": falls back to an algorithm without workspace");
        else if (choice.workspace)
            fallbacks.lines.push_back(fmt::format("{}: falls back to an algorithm with at most {} of workspace", key,
                                                  format_bytes(*choice.workspace)));
        fallbacks.count += choice.separate_bias || choice.workspace;
    }
}

[[noreturn]] void stop_run(const std::string& why, const std::vector<std::string>& lines) {
    std::string text = "card check: " + why;
    for (const std::string& line : lines) text += "\n  " + line;
    throw Error(ExitCode::no_resources, text);
}

void require_irreplaceable(const CardCheckResult& result) {
    if (!result.refusals.empty()) stop_run("this run needs kernels that are wrong on this card:", result.refusals);
    for (const Product& product : result.wrong_products)
        if (!is_fp8(product.type))
            stop_run(product.describe() + " is wrong on this card with every algorithm:", result.notes);
}

// ---- the check -----------------------------------------------------------------------------------------------------

std::string device_text(const DeviceInfo& device) {
    std::string text;
    const Json versions = versions_json();
    for (const std::string name : {"driver", "cublaslt", "openblas_core", "onednn"})
        if (versions.contains(name))
            text += (text.empty() ? "" : ", ") + name + " " + versions[name].get<std::string>();
    return device.name + (text.empty() ? "" : " (" + text + ")");
}

struct Checked {
    Admission admission;  // its options are changed where needed to run correctly on these cards
    MemoryByKind memory;  // memory of a run with these options
    CardCheckResult result;
    bool kept = true;    // every result came from an earlier check
    double seconds = 0;  // spent on all checks
    Fallbacks fallbacks;
    std::vector<std::string> notes;
    const std::string& path() const { return admission.kept->path(); }  // where the results are kept
};

std::string summary_line(const Checked& checked, const DeviceInfo& device) {
    const CardCheckResult& result = checked.result;
    return fmt::format("checked on {}: {} of {} right, {} fell back ({}{})\n", device_text(device), result.right,
                       result.items, checked.fallbacks.count,
                       checked.kept ? "known" : fmt::format("{:.1f} s", checked.seconds),
                       checked.path().empty() ? "" : ("; " + checked.path()));
}

// Builds the request of a run with these options.
CheckRequest request_of(const Options& o, const StagePlan& plan, const Comm& comm,
                        const std::map<std::string, std::string>& preferred) {
    const TrainerConfig config = trainer_config(o);
    CheckRequest request;
    request.device = device_of_rank(comm, device_count());
    request.use = KernelUse(config, o.precision, comm.world());
    request.run = checked_run_text(o, comm.world());
    for (const auto& [product, kinds] : plan.products) request.products.push_back(product);
    request.tf32 = config.tf32;
    request.fast_accumulation = config.fast_accumulation;
    request.tune = o.tune;
    request.preferred = preferred;
    request.item_seconds = o.timeout_check;
    return request;
}

// Checks and replaces until everything that is left is correct.
Checked check_until_right(const Options& options, Ranks& ranks, const Resumed* resumed) {
    Checked checked;
    Options& o = checked.admission.options = options;
    CardCheck check{kept_results(ranks.device), [&] { ranks.watchdog.alive(); }};
    check.force = o.card_check == CardCheckMode::force;
    checked.admission.kept = check.kept;
    const std::map<std::string, std::string> preferred = algorithms_of(products_of(resumed, checked.notes));
    for (;;) {
        const StagePlan plan = plan_rank(o, ranks.comm);
        check.request = request_of(o, plan, ranks.comm, preferred);
        checked.memory = plan.memory;
        checked.result = check_card(check, ranks.comm);
        checked.kept = checked.kept && checked.result.kept;
        checked.seconds += checked.result.seconds;
        for (const std::string& note : checked.result.notes)
            if (!contains(checked.notes, note)) checked.notes.push_back(note);
        require_irreplaceable(checked.result);
        if (!replace_wrong(o, checked.result, plan, checked.fallbacks)) break;
        check.force = false;  // cached results count from here on
    }
    add_products(checked.result.choices, checked.fallbacks);
    if (o.strict && checked.fallbacks.count > 0)
        stop_run("--strict allows no fallback, and these are needed:", checked.notes);
    return checked;
}

void print_notes(const Checked& checked) {
    for (const std::string& note : checked.notes) print_line("note: card check: {}", note);
    for (const std::string& line : checked.fallbacks.lines) print_line("note: card check: {}", line);
    if (!checked.result.keeping_problem.empty())
        print_line("note: the card check's results cannot be stored: {}", checked.result.keeping_problem);
}

// Rates of products in TFLOP/s, or the other rates in GB/s.
Json rates_json(const Rates& rates, bool of_products) {
    Json json = Json::object();
    for (const auto& [name, rate] : rates)
        if (is_of_products(name) == of_products) json[name] = rate / (of_products ? 1e12 : 1e9);
    return json;
}

// "   up to TFLOP/s: bf16 612, fp8 1190", or "   GB/s: copy 4120".
std::string rates_text(const Rates& rates) {
    std::string text;
    for (const bool of_products : {true, false}) {
        const Json json = rates_json(rates, of_products);
        for (const auto& [name, rate] : json.items())
            text += (text.empty() ? of_products ? "   up to TFLOP/s: " : "   GB/s: " : ", ") + name +
                    fmt::format(" {:.3g}", rate.get<double>());
    }
    return text;
}

}  // namespace

MeasuredRates kept_rates(const DeviceInfo& device) {
    const KeptResults kept = kept_results(device);
    return {rates_of(kept.load()), kept.date()};
}

bool checks_cards(const Options& o, const DeviceInfo& device) {
    return o.card_check == CardCheckMode::force || (o.card_check == CardCheckMode::automatic && !device.is_host);
}

void note_links(const Rates& rates, const Comm& comm, Admission& admission) {
    if (rates.empty()) return;
    if (comm.is_main())
        print_line("checked between ranks: all_gather {:.3g} GB/s, reduce_scatter {:.3g} GB/s per rank",
                   rates.at("all_gather") / 1e9, rates.at("reduce_scatter") / 1e9);
    for (const auto& [name, rate] : rates) admission.rates[name] = rate;
    (*admission.summary)["gb_per_s"] = rates_json(admission.rates, false);
    bool one_node = true;
    for (int rank = 1; rank < comm.world(); rank++) one_node &= comm.host(rank) == comm.host(0);
    if (one_node && std::string(comm.name()) == "nccl")  // otherwise these are not the rates of the card's links
        admission.kept->add(
            {{fmt::format("links of {} ranks", comm.world()), {"between ranks", "", "", 0, {}, rates}}});
}

std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision, const Admission& admission) {
    if (const std::optional<double> peak = peak_tflops(device, precision)) return peak;
    const auto measured = admission.rates.find(word_of(precision));
    return measured == admission.rates.end() ? std::nullopt : std::optional(measured->second * 1e-12);
}

Admission admit(const Options& o, Ranks& ranks, const Resumed* resumed) {
    if (!checks_cards(o, ranks.device)) {
        Admission admission;
        admission.options = o;
        std::vector<std::string> notes;
        admission.products = products_of(resumed, notes);
        compare_kernels(o, resumed, notes);
        for (const std::string& note : notes)
            if (ranks.comm.is_main()) print_line("note: {}", note);
        return admission;
    }
    Checked checked = check_until_right(o, ranks, resumed);
    check_memory(checked.memory, ranks.libraries_to_come(o), ranks.device.free_memory, ranks.device.name);
    Admission& admission = checked.admission;
    compare_kernels(admission.options, resumed, checked.notes);
    admission.products = checked.result.choices;
    *admission.findings = checked.result.findings;
    admission.rates = rates_of(checked.result.findings);
    *admission.summary = {{"right", checked.result.right},
                          {"items", checked.result.items},
                          {"fell_back", checked.fallbacks.count},
                          {"fallbacks", checked.fallbacks.lines},
                          {"notes", checked.notes},
                          {"tflops", rates_json(admission.rates, true)},
                          {"gb_per_s", rates_json(admission.rates, false)},
                          {"results", checked.path()}};
    if (ranks.comm.is_main()) {
        print_notes(checked);
        std::fputs(summary_line(checked, ranks.device).c_str(), stdout);
        const Precision precision = admission.options.precision;
        const std::optional<double> peak = peak_tflops(ranks.device, precision, admission);
        if (peak && !peak_tflops(ranks.device, precision))
            print_line(
                "note: this card is not in the table of cards, so MFU is relative to {:.3g} TFLOP/s, the highest "
                "matmul rate that the card check measured",
                *peak);
    }
    return admission;
}

void load_products(const std::map<Product, std::set<std::string>>& products, Matmul& matmul, stream_t stream) {
    const ProductCounts before = matmul.counts();
    ProductChecks checks(matmul, stream);
    for (const auto& [product, kinds] : products) {
        try {
            checks.run(product);
        } catch (const Error& error) {
            if (error.code() != ExitCode::no_resources) throw;  // it is loaded in the first step instead
        }
    }
    synchronize(stream);
    matmul.reset_counts(before);
}

std::string checked_run_text(const Options& o, int ranks) {
    return json_text(
        Json{{"config", parse_json<Json>(config_json(o))}, {"ranks", ranks}, {"kernels", o.kernel_set.names()}});
}

KernelUse kernel_use_from_text(const std::string& text) {
    const Json run = parse_json<Json>(text);
    Options o = options_from_json(json_text(run.at("config")));
    ResolveInputs surroundings;
    surroundings.ranks = run.at("ranks");
    resolve(o, surroundings);
    o.kernel_set = {};
    for (const std::string name : run.at("kernels")) o.kernel_set.add(kernel_variant(name).variant);
    return KernelUse(trainer_config(o), o.precision, surroundings.ranks);
}

ExitCode check_cards(const Options& o, Ranks& ranks) {
    Checked checked = check_until_right(o, ranks, nullptr);
    if (ranks.comm.world() > 1)
        note_links(check_collectives({{"the world", ranks.comm}}, ranks.comm), ranks.comm, checked.admission);
    ranks.finish();
    if (!ranks.comm.is_main()) return ExitCode::ok;
    std::map<std::string, Findings> families;
    for (const auto& [name, finding] : checked.result.findings) families[finding.family].emplace(name, finding);
    for (const auto& [family, findings] : families) {
        const auto right = std::count_if(findings.begin(), findings.end(),
                                         [](const auto& finding) { return finding.second.problem.empty(); });
        const std::string name = family == "products" ? "matmuls" : family;
        print_line("  {:14} {:3} of {:3} right{}", name, right, findings.size(), rates_text(rates_of(findings)));
    }
    print_notes(checked);
    std::fputs(summary_line(checked, ranks.device).c_str(), stdout);
    return ExitCode::ok;
}

}  // namespace llmc
