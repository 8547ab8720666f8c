// The choice of a run's algorithms, and what is kept of it (tuning.h).
#include "llmc/run/tuning.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/cache_file.h"
#include "llmc/base/clock.h"
#include "llmc/comm/agreement.h"
#include "llmc/log/provenance.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"

namespace llmc {

// The algorithms of the checkpoint's run, if the library has the same version. Earlier versions stored an object for
// each matmul instead of the algorithm's text.
static ProductChoices products_of(const Resumed* resumed, const Comm& comm) {
    if (!resumed) return {};
    const Manifest& manifest = resumed->checkpoint->manifest();
    ProductChoices choices;
    const Json then_chosen = manifest.run->value("products", Json::object());
    for (const auto& [product, choice] : then_chosen.items())
        choices[product] = choice.is_object() ? choice.value("algorithm", "") : choice.get<std::string>();
    std::erase_if(choices, [](const auto& choice) { return choice.second.empty(); });
    if (choices.empty()) return {};
    const std::string now = versions_json().value("cublaslt", ""), then = manifest.versions->value("cublaslt", "");
    if (!now.empty() && then == now) return choices;
    if (comm.is_main())
        print_line("note: the checkpoint's matmuls ran in cuBLASLt {}; with this version their bits may differ", then);
    return {};
}

// Rates of matmuls in TFLOP/s, or the other rates in GB/s.
static Json rates_json(const Rates& rates, bool of_products) {
    Json json = Json::object();
    for (const auto& [name, rate] : rates)
        if (is_of_products(name) == of_products) json[name] = rate / (of_products ? 1e12 : 1e9);
    return json;
}
static std::string rates_text(const Rates& rates) {
    std::string text;
    for (const bool of_products : {true, false}) {
        std::vector<std::string> parts;
        const Json of_kind = rates_json(rates, of_products);
        for (const auto& [name, rate] : of_kind.items())
            parts.push_back(name + fmt::format(" {:.3g}", rate.get<double>()));
        if (!parts.empty()) text += fmt::format("; {} {}", of_products ? "TFLOP/s:" : "GB/s:", joined(parts));
    }
    return text;
}

static bool has_fast_links(const Comm& comm) {  // all ranks are on one node, and NCCL joins them
    return comm.world() > 1 && comm.local_world() == comm.world() && std::string(comm.name()) == "nccl";
}

using Floats = Owned<float*, device_free>;
static Floats zeros(size_t count, stream_t stream) {
    float* const memory = static_cast<float*>(device_malloc(count * sizeof(float)));
    set_bytes(memory, 0, count * sizeof(float), stream);
    return memory;
}

// Bytes that this rank sends to others per second in a collective that sends `bytes` to each of them.
template <class Operation>
static double link_rate(const Comm& comm, size_t bytes, stream_t stream, Operation&& operation) {
    constexpr int kWarmUp = 1, kTimed = 4;
    double begin = 0;
    for (int i = 0; i < kWarmUp + kTimed; i++) {
        if (i == kWarmUp) {
            synchronize(stream);
            comm.barrier();
            begin = monotonic_seconds();
        }
        operation();
    }
    synchronize(stream);
    const double seconds = monotonic_seconds() - begin;
    return kTimed * static_cast<double>(bytes) * (comm.world() - 1) / seconds;
}

// The two collectives that sharding needs, on zeros, while the ranks are idle. A collective itself.
static Rates measure_links(const Comm& comm) {
    // Floats per rank: 64 MiB over all ranks, because small messages do not reach the speed of the links.
    const size_t world = static_cast<size_t>(comm.world());
    const size_t count = std::max(size_t{256} << 10, (size_t{16} << 20) / world), bytes = count * sizeof(float);
    Floats whole, part, workspace;
    const OwnedStream stream = create_stream(StreamPriority::communication);
    whole = zeros(count * world, stream);
    part = zeros(count, stream);
    workspace = zeros(comm.reduce_scatter_workspace(count, Wire::fp32, false) / sizeof(float) + 1, stream);
    Rates rates;
    rates["all_gather"] = link_rate(comm, bytes, stream, [&] {
        comm.all_gather(whole, whole + static_cast<size_t>(comm.rank()) * count, bytes, stream);
    });
    rates["reduce_scatter"] = link_rate(
        comm, bytes, stream, [&] { comm.reduce_scatter(part, whole, count, Wire::fp32, false, workspace, stream); });
    comm.reset_traffic();  // which counts what training sends
    return rates;
}

// Rank 0's value.
static Json broadcast(const Comm& comm, const Json& json) { return parse_json(broadcast_text(comm, json_text(json))); }

// Times the products and measures the rates that are not known yet.
static Json measure(const Options& o, const ProductUses& products, const ProductChoices& chosen, const Json& known,
                    Matmul& matmul, Ranks& ranks) {
    const OwnedStream stream = create_stream();
    std::vector<Product> unknown;
    for (const auto& [product, layers] : products) {
        const std::string key = matmul.key(product);
        if (!chosen.contains(key) && !known["algorithms"].contains(key)) unknown.push_back(product);
    }
    const Tuned tuned = tune(unknown, o.tune, matmul, stream, [&] { ranks.watchdog.alive(); });
    Rates rates = tuned.rates;
    if (!known["rates"].contains("copy"))
        if (const double rate = copy_rate(stream); rate > 0) rates["copy"] = rate;
    return {{"algorithms", tuned.choices}, {"rates", rates}};
}

// Versions of what decides, next to the card, how fast matmuls are and which algorithms they have.
static Json libraries() {
    Json found = Json::object();
    const Json versions = versions_json();
    for (const char* name : {"driver", "cublaslt"})
        if (versions.contains(name)) found[name] = versions[name];
    return found;
}

static std::string card_text(const DeviceInfo& device) {
    std::vector<std::string> parts;
    const Json versions = libraries();
    for (const auto& [name, version] : versions.items()) parts.push_back(name + " " + version.get<std::string>());
    return device.name + (parts.empty() ? "" : " (" + joined(parts) + ")");
}

// A line about check_card's results on this kind of card, if they are missing or bad.
static void print_check(const Json& check, const DeviceInfo& device) {
    if (check.is_null())
        print_line(
            "note: check_card has not been run on this kind of card, {}. To test everything that this run uses, in a "
            "checkout: make check_card && ./check_card FLAGS",
            card_text(device));
    else
        for (const auto& [item, problem] : check.at("items").items())
            if (problem != "")
                print_line("note: check_card found an error on this kind of card ({}): {}: {}", check.value("date", ""),
                           item, problem.get<std::string>());
}

static void print_notes(const Options& o, const Tuning& tuning, const Json& check, const DeviceInfo& device) {
    const std::optional<double> peak = peak_tflops(device, o.precision, tuning.rates);
    if (peak && !peak_tflops(device, o.precision))
        print_line(
            "note: this card is not in the table of cards, so MFU is relative to {:.3g} TFLOP/s, the highest "
            "rate of its matmuls that was measured",
            *peak);
    print_check(check, device);
}

CacheFile card_cache(const DeviceInfo& device) {
    Json identity = {{"device", device.name}, {"compute_capability", device.compute_capability}};
    identity.update(libraries());
    return {cache_directory(), "card", identity};
}

MeasuredRates kept_rates(const DeviceInfo& device) {
    const Json kept = card_cache(device).load();
    return {kept.value("rates", Rates()), kept.value("measured", "")};
}

std::optional<double> peak_tflops(const DeviceInfo& device, Precision precision, const Rates& rates) {
    if (const std::optional<double> peak = peak_tflops(device, precision)) return peak;
    const auto measured = rates.find(word_of(precision));
    return measured == rates.end() ? std::nullopt : std::optional(measured->second * 1e-12);
}

Tuning tune_run(const Options& o, const ProductUses& products, Ranks& ranks, const Resumed* resumed) {
    const Comm& comm = ranks.comm;
    const double began = monotonic_seconds();
    Tuning tuning;
    tuning.products = products_of(resumed, comm);
    if (ranks.device.is_host) return tuning;

    const CacheFile cache = card_cache(ranks.device);
    Json known = {{"algorithms", Json::object()}, {"rates", Json::object()}, {"check_card", nullptr}}, found;
    known.update(broadcast(comm, comm.is_main() ? cache.load() : Json::object()));
    tuning.rates = known["rates"];
    if (o.tune > 1) {
        Matmul matmul(o.tf32, o.fast_accumulation, o.fp8_scaling());
        do_together(comm, [&] {
            if (comm.is_main()) found = measure(o, products, tuning.products, known, matmul, ranks);
        });
        found = broadcast(comm, found);
        Rates measured = found["rates"];
        if (has_fast_links(comm) && !known["rates"].contains("all_gather")) measured.merge(measure_links(comm));
        raise(tuning.rates, measured);
        known["algorithms"].update(found["algorithms"]);
        for (const auto& [product, layers] : products) {
            const std::string key = matmul.key(product);
            if (known["algorithms"].contains(key)) tuning.products.insert({key, known["algorithms"][key]});
        }
        if (comm.is_main() && !measured.empty()) {
            const std::string problem = cache.add(
                {{"algorithms", found["algorithms"]}, {"rates", tuning.rates}, {"measured", utc_now().substr(0, 10)}});
            if (!problem.empty()) print_line("note: the algorithms cannot be kept for the next run: {}", problem);
            print_line("tuned {} on {} in {:.1f} s{}", counted(found["algorithms"].size(), "matmul"),
                       card_text(ranks.device), monotonic_seconds() - began, rates_text(tuning.rates));
        }
    }
    forget_memory_peaks();  // those of tuning, which plans do not count
    *tuning.summary = {{"tflops", rates_json(tuning.rates, true)},
                       {"gb_per_s", rates_json(tuning.rates, false)},
                       {"kept", cache.path()},
                       {"check_card", known["check_card"].is_null() ? Json() : known["check_card"]["date"]}};
    if (comm.is_main()) print_notes(o, tuning, known["check_card"], ranks.device);
    return tuning;
}

}  // namespace llmc
