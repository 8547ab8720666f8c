#include "llmc/commands/check.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/comm/connect.h"
#include "llmc/commands/plan.h"
#include "llmc/flags/trainer_config.h"
#include "llmc/kernels/variants.h"
#include "llmc/log/versions.h"
#include "llmc/plan/cards.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// The file that this process runs.
constexpr const char* kThisProgram = "/proc/self/exe";

std::string program_fingerprint() {
    std::ostringstream read;
    read << std::ifstream(kThisProgram, std::ios::binary).rdbuf();
    const std::string program = read.str();
    return strprintf("%016llx", static_cast<unsigned long long>(checksum(program.data(), program.size())));
}

// Everything that results depend on, beside what is checked.
Json identity_of(const DeviceInfo& device) {
    Json json = {{"device", device.name},
                 {"uuid", device.uuid},
                 {"compute_capability", device.compute_capability},
                 {"program", program_fingerprint()}};
    json.update(versions_json());
    json.erase("nccl");  // which is there only once it is in use
    return json;
}

KernelUse use_of(const TrainerConfig& config, bool fp32, int ranks) {
    KernelUse use;
    use.bf16 = !fp32;
    use.fp8 = config.fp8.has_value();
    use.scaling = config.fp8_scaling();
    use.e4m3_gradients = config.fp8 && config.fp8->e4m3_gradients;
    use.current_scaling = config.fp8 && config.fp8->recipe == Fp8Recipe::current;
    use.smooth = config.fp8 && config.fp8->smooth;
    use.probe = config.fp8 && config.fp8->probe;
    for (const KernelVariantEntry& entry : kernel_variants())
        use.loops |= entry.last_card == kHostDevice && config.kernels.has(entry.variant);
    use.several_ranks = ranks > 1;
    use.fp8_wire = ranks > 1 && config.sharding.wire == Wire::fp8;
    use.optimizer = config.optimizer.kind;
    use.adam_moments = config.optimizer.adam_moments;
    use.clip_kind = config.optimizer.clip_kind;
    use.documents = config.end_token.has_value();
    use.document_positions = config.document_positions;
    use.loss = config.loss;
    use.set_model(config.model);
    return use;
}

std::map<std::string, std::string> algorithms_of(const ProductChoices& choices) {
    std::map<std::string, std::string> algorithms;
    for (const auto& [key, choice] : choices) algorithms[key] = choice.algorithm;
    return algorithms;
}

// Other kernels than the checkpoint's run had may round otherwise.
void compare_kernels(const Options& o, const Resumed* resumed, std::vector<std::string>& notes) {
    if (!resumed) return;
    const Json then = resumed->checkpoint->manifest().run.value("kernels", Json());
    const Json now = o.kernel_set.names();
    if (then.is_array() && then != now)
        notes.push_back(
            strprintf("the checkpoint's run used the kernels %s, this run uses %s; results may round differently",
                      json_text(then).c_str(), json_text(now).c_str()));
}

// The products of the checkpoint's run, if they were made by this version of the library.
ProductChoices products_of(const Resumed* resumed, std::vector<std::string>& notes) {
    if (!resumed) return {};
    const Manifest& manifest = resumed->checkpoint->manifest();
    const ProductChoices choices = choices_from_json(manifest.run.value("products", Json::object()));
    if (choices.empty()) return {};
    const std::string now = versions_json().value("cublaslt", ""), then = manifest.versions.value("cublaslt", "");
    if (!now.empty() && then == now) return choices;
    notes.push_back(strprintf("the checkpoint's matmuls ran in cuBLASLt %s; with this version their bits may differ",
                              then.c_str()));
    return {};
}

// ---- what gives way ------------------------------------------------------------------------------------------------

struct Fallbacks {
    std::vector<std::string> lines;  // what was done
    int count = 0;
};

void leave_out_kernels(Options& o, const std::set<std::string>& wrong, Fallbacks& fallbacks) {
    for (const std::string& name : wrong) {
        if (name == kAllOfFp8) continue;
        const KernelVariantEntry& entry = kernel_variant(name);
        if (!o.kernel_set.has(entry.variant)) continue;
        o.kernel_set.remove(entry.variant);
        fallbacks.lines.push_back(strprintf("%s falls back to %s", entry.name, entry.counterpart));
        fallbacks.count++;
    }
}

void go_on_in_bf16(Options& o, int card, Fallbacks& fallbacks) {
    fallbacks.lines.push_back("FP8 falls back to BF16 altogether: --precision bf16");
    fallbacks.count++;
    o.precision = Precision::bf16;
    o.kernel_set = kernel_set_from_text(o.kernels, card, false);
}

// False: nothing had to.
bool give_way(Options& o, const CardCheckResult& result, const StagePlan& plan, int card, Fallbacks& fallbacks) {
    const int before = fallbacks.count;
    if (result.wrong_variants.count(kAllOfFp8)) {
        go_on_in_bf16(o, card, fallbacks);
        return true;
    }
    leave_out_kernels(o, result.wrong_variants, fallbacks);
    std::set<std::string> kinds;
    for (const Product& product : result.wrong_products)
        if (is_fp8(product.type)) kinds.insert(plan.products.at(product).begin(), plan.products.at(product).end());
    for (const std::string& kind : kinds) {
        fallbacks.lines.push_back("layers " + kind + " fall back to BF16");
        fallbacks.count++;
        o.fp8_layers += ",-" + kind;
    }
    const TrainerConfig config = trainer_config(o);
    if (!kinds.empty() && Fp8Layers(o.fp8_layers, config.model.layers, linear_names(config.model)).empty())
        go_on_in_bf16(o, card, fallbacks);
    return fallbacks.count > before;
}

[[noreturn]] void refuse(const CardCheckResult& result, const std::string& why) {
    std::string text = "card check: " + why;
    for (const std::string& line : result.refusals) text += "\n  " + line;
    throw Error(ExitCode::no_resources, text);
}

void require_what_nothing_replaces(const CardCheckResult& result) {
    if (!result.refusals.empty()) refuse(result, "this run needs kernels that are wrong on this card:");
    for (const Product& product : result.wrong_products) {
        if (is_fp8(product.type)) continue;
        std::string text = product.describe() + " is wrong on this card with every algorithm:";
        for (const std::string& note : result.notes) text += "\n  " + note;
        refuse(result, text);
    }
}

// ---- what is said --------------------------------------------------------------------------------------------------

std::string device_text(const DeviceInfo& device) {
    std::string text;
    const Json versions = versions_json();
    for (const std::string name : {"driver", "cublaslt", "openblas_core"})
        if (versions.contains(name))
            text += (text.empty() ? "" : ", ") + name + " " + versions[name].get<std::string>();
    return device.name + (text.empty() ? "" : " (" + text + ")");
}

struct Checked {
    CheckRequest request;  // the last one, of what is used
    MemoryByKind memory;   // that this takes
    CardCheckResult result;
    bool kept = true;    // all of it was known
    double seconds = 0;  // that it took
    Fallbacks fallbacks;
    std::vector<std::string> notes;
    std::optional<KeptResults> kept_in;
};

std::string summary_line(const Checked& checked, const DeviceInfo& device) {
    const CardCheckResult& result = checked.result;
    return strprintf("checked on %s: %d of %d right, %d fell back (%s%s)\n", device_text(device).c_str(), result.right,
                     result.items, checked.fallbacks.count,
                     checked.kept ? "known" : strprintf("%.1f s", checked.seconds).c_str(),
                     checked.kept_in->path().empty() ? "" : ("; " + checked.kept_in->path()).c_str());
}

// Checks and gives way until what is left is right. `device` is this rank's.
Checked check_until_right(Options& o, Ranks& ranks, const Resumed* resumed) {
    Checked checked;
    CardCheck check;
    check.identity = identity_of(ranks.device);
    check.cache = cache_directory();
    check.program = kThisProgram;
    check.alive = [&] { ranks.watchdog.alive(); };
    check.force = o.card_check == CardCheckMode::force;
    checked.kept_in.emplace(check.cache, check.identity);
    const std::map<std::string, std::string> preferred = algorithms_of(products_of(resumed, checked.notes));
    for (;;) {
        const StagePlan plan = plan_rank(o, ranks.comm);
        const TrainerConfig config = trainer_config(o);
        check.request = {};
        check.request.device = device_of_rank(ranks.comm, device_count());
        check.request.use = use_of(config, o.precision == Precision::fp32, ranks.comm.world());
        for (const auto& [product, kinds] : plan.products) check.request.products.push_back(product);
        check.request.tf32 = config.tf32;
        check.request.fast_accumulation = config.fast_accumulation;
        check.request.tune = o.tune;
        check.request.preferred = preferred;
        check.request.item_seconds = o.timeout_check;
        checked.request = check.request;
        checked.memory = plan.memory;
        checked.result = check_card(check, ranks.comm);
        checked.kept = checked.kept && checked.result.kept;
        checked.seconds += checked.result.seconds;
        for (const std::string& note : checked.result.notes)
            if (std::find(checked.notes.begin(), checked.notes.end(), note) == checked.notes.end())
                checked.notes.push_back(note);
        require_what_nothing_replaces(checked.result);
        if (!give_way(o, checked.result, plan, ranks.device.compute_capability, checked.fallbacks)) break;
        check.force = false;  // what is right by now need not be looked at again
    }
    for (const auto& [key, choice] : checked.result.choices) {
        if (choice.separate_bias)
            checked.fallbacks.lines.push_back(key + ": falls back to a separate kernel for the bias");
        if (choice.workspace)
            checked.fallbacks.lines.push_back(key + (*choice.workspace == 0
                                                         ? ": falls back to an algorithm without workspace"
                                                         : ": falls back to an algorithm with at most " +
                                                               format_bytes(*choice.workspace) + " of workspace"));
        checked.fallbacks.count += choice.separate_bias || choice.workspace;
    }
    if (o.strict && checked.fallbacks.count > 0) {
        std::string text = "card check: --strict allows no fallback, and these are needed:";
        for (const std::string& note : checked.notes) text += "\n  " + note;
        throw Error(ExitCode::no_resources, text);
    }
    return checked;
}

void print_notes(const Checked& checked) {
    for (const std::string& note : checked.notes) std::printf("note: card check: %s\n", note.c_str());
    for (const std::string& line : checked.fallbacks.lines) std::printf("note: card check: %s\n", line.c_str());
    if (!checked.result.keeping_problem.empty())
        std::printf("note: the card check's results cannot be stored: %s\n", checked.result.keeping_problem.c_str());
}

// Of products, in TFLOP/s; of what moves bytes, in GB/s.
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
                    strprintf(" %.3g", rate.get<double>());
    }
    return text;
}

}  // namespace

MeasuredRates kept_rates(const DeviceInfo& device) {
    const KeptResults kept(cache_directory(), identity_of(device));
    return {rates_of(kept.load()), kept.date()};
}

bool checks_cards(const Options& o, const DeviceInfo& device) {
    return o.card_check == CardCheckMode::force || (o.card_check == CardCheckMode::automatic && !device.is_host);
}

void note_links(const Rates& rates, const Comm& comm, Admission& admission) {
    if (rates.empty()) return;
    if (comm.is_main())
        std::printf("checked between ranks: all_gather %.3g GB/s, reduce_scatter %.3g GB/s per rank\n",
                    rates.at("all_gather") / 1e9, rates.at("reduce_scatter") / 1e9);
    for (const auto& [name, rate] : rates) admission.rates[name] = rate;
    admission.summary["gb_per_s"] = rates_json(admission.rates, false);
    bool one_node = true;
    for (int rank = 1; rank < comm.world(); rank++) one_node &= comm.host(rank) == comm.host(0);
    if (one_node && std::string(comm.name()) == "nccl")  // or these are no rates of the card's links
        admission.kept->add({{strprintf("links of %d ranks", comm.world()), {"between ranks", "", "", 0, {}, rates}}});
}

std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision, const Admission& admission) {
    if (const std::optional<double> peak = peak_tflops(device, precision)) return peak;
    const auto measured = admission.rates.find(word_of(precision));
    return measured == admission.rates.end() ? std::nullopt : std::optional(measured->second * 1e-12);
}

Admission admit(Options& o, Ranks& ranks, const Resumed* resumed) {
    Admission admission;
    if (!checks_cards(o, ranks.device)) {
        std::vector<std::string> notes;
        admission.products = products_of(resumed, notes);
        compare_kernels(o, resumed, notes);
        for (const std::string& note : notes)
            if (ranks.comm.is_main()) std::printf("note: %s\n", note.c_str());
        return admission;
    }
    Checked checked = check_until_right(o, ranks, resumed);
    check_memory(checked.memory, ranks.libraries_to_come(o), ranks.device.free_memory, ranks.device.name);
    compare_kernels(o, resumed, checked.notes);
    admission.products = checked.result.choices;
    admission.findings = findings_json(checked.result.findings);
    admission.rates = rates_of(checked.result.findings);
    admission.summary = {{"right", checked.result.right},
                         {"items", checked.result.items},
                         {"fell_back", checked.fallbacks.count},
                         {"fallbacks", checked.fallbacks.lines},
                         {"notes", checked.notes},
                         {"tflops", rates_json(admission.rates, true)},
                         {"gb_per_s", rates_json(admission.rates, false)},
                         {"results", checked.kept_in->path()}};
    admission.kept = checked.kept_in;
    if (ranks.comm.is_main()) {
        print_notes(checked);
        std::fputs(summary_line(checked, ranks.device).c_str(), stdout);
        const std::optional<double> peak = peak_tflops(ranks.device, o.precision, admission);
        if (peak && !peak_tflops(ranks.device, o.precision))
            std::printf(
                "note: this card is not in the table of cards, so MFU is relative to %.3g TFLOP/s, the highest matmul "
                "rate that the card check measured\n",
                *peak);
    }
    return admission;
}

ExitCode check_cards(Options& o, Ranks& ranks) {
    const Checked checked = check_until_right(o, ranks, nullptr);
    Admission admission;
    admission.kept = checked.kept_in;
    if (ranks.comm.world() > 1)
        note_links(check_collectives({{"the world", ranks.comm}}, ranks.comm), ranks.comm, admission);
    if (!ranks.comm.is_main()) return ExitCode::ok;
    std::map<std::string, Findings> families;
    for (const auto& [name, finding] : checked.result.findings) families[finding.family].emplace(name, finding);
    for (const auto& [family, findings] : families) {
        const auto right = std::count_if(findings.begin(), findings.end(),
                                         [](const auto& finding) { return finding.second.problem.empty(); });
        const std::string name = family == "products" ? "matmuls" : family;
        std::printf("  %-14s %3d of %3d right%s\n", name.c_str(), static_cast<int>(right),
                    static_cast<int>(findings.size()), rates_text(rates_of(findings)).c_str());
    }
    print_notes(checked);
    std::fputs(summary_line(checked, ranks.device).c_str(), stdout);
    return ExitCode::ok;
}

}  // namespace llmc
