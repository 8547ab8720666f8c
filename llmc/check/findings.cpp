#include "llmc/check/findings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

Json way_json(const ProductChoice& way) {
    Json json = Json::object();
    if (!way.algorithm.empty()) json["algorithm"] = way.algorithm;
    if (way.emulated) json["emulated"] = true;
    if (way.separate_bias) json["separate_bias"] = true;
    if (way.workspace) json["workspace"] = *way.workspace;
    return json;
}
ProductChoice way_from_json(const Json& json) {
    ProductChoice way{json.value("algorithm", ""), json.value("emulated", false), json.value("separate_bias", false)};
    if (json.contains("workspace")) way.workspace = json["workspace"].get<size_t>();
    return way;
}

Json product_json(const Product& p) {
    return {static_cast<int>(p.kind),   static_cast<int>(p.type), p.N, p.C, p.OC, p.bias, p.accumulate,
            static_cast<int>(p.scaling)};
}
Product product_from_json(const Json& j) {
    return {static_cast<Product::Kind>(j.at(0).get<int>()),
            static_cast<OperandType>(j.at(1).get<int>()),
            j.at(2),
            j.at(3),
            j.at(4),
            j.at(5),
            j.at(6),
            static_cast<Fp8Scaling>(j.at(7).get<int>())};
}

// f(name, field) for every field of a KernelUse, or of a const one: one more does not compile before it is named here.
template <class Use, class F>
void each_field(Use& use, F&& f) {
    auto& [bf16, fp8, scaling, e4m3_gradients, current_scaling, loops, smooth, probe, several_ranks, fp8_wire,
           optimizer, adam_moments, clip_kind, documents, document_positions, loss, channels, heads, kv_heads, head_dim,
           window, hidden, vocab, padded_vocab, layer_norm, rms_norm, rms_norm_without_gains, biases,
           position_embedding, qk_norm, qk_gains, activation, logit_cap] = use;
    f("bf16", bf16);
    f("fp8", fp8);
    f("scaling", scaling);
    f("e4m3_gradients", e4m3_gradients);
    f("current_scaling", current_scaling);
    f("loops", loops);
    f("smooth", smooth);
    f("probe", probe);
    f("several_ranks", several_ranks);
    f("fp8_wire", fp8_wire);
    f("optimizer", optimizer);
    f("adam_moments", adam_moments);
    f("clip_kind", clip_kind);
    f("documents", documents);
    f("document_positions", document_positions);
    f("z_loss", loss.z_loss);
    f("label_smoothing", loss.label_smoothing);
    f("channels", channels);
    f("heads", heads);
    f("kv_heads", kv_heads);
    f("head_dim", head_dim);
    f("window", window);
    f("hidden", hidden);
    f("vocab", vocab);
    f("padded_vocab", padded_vocab);
    f("layer_norm", layer_norm);
    f("rms_norm", rms_norm);
    f("rms_norm_without_gains", rms_norm_without_gains);
    f("biases", biases);
    f("position_embedding", position_embedding);
    f("qk_norm", qk_norm);
    f("qk_gains", qk_gains);
    f("activation", activation);
    f("logit_cap", logit_cap);
}

Json use_json(const KernelUse& use) {
    Json json;
    each_field(use, [&](const char* name, const auto& field) {
        if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(field)>>)
            json[name] = static_cast<int>(field);
        else
            json[name] = field;
    });
    return json;
}
KernelUse use_from_json(const Json& json) {
    KernelUse use;
    each_field(use, [&](const char* name, auto& field) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (std::is_enum_v<Field>)
            field = static_cast<Field>(json.at(name).get<int>());
        else
            field = json.at(name).get<Field>();
    });
    return use;
}

}  // namespace

Json trial_json(const ProductTrial& trial) {
    Json json = way_json(trial.way);
    if (!trial.problem.empty()) json["problem"] = trial.problem;
    if (trial.ms > 0) json["ms"] = trial.ms;
    return json;
}
ProductTrial trial_from_json(const Json& json) {
    return {way_from_json(json), json.value("problem", ""), json.value("ms", 0.0)};
}

Json findings_json(const Findings& findings) {
    Json all = Json::object();
    for (const auto& [name, f] : findings) {
        Json& json = all[name] = {{"family", f.family}, {"right", f.problem.empty()}};
        if (!f.variant.empty()) json["variant"] = f.variant;
        if (!f.problem.empty()) json["problem"] = f.problem;
        json["seconds"] = f.seconds;
        for (const ProductTrial& trial : f.trials) json["ways"].push_back(trial_json(trial));
        if (!f.rates.empty()) json["rates"] = f.rates;
    }
    return all;
}

Findings findings_from_json(const Json& json) {
    Findings findings;
    for (const auto& [name, value] : json.items()) {
        Finding& f = findings[name];
        f.family = value.at("family");
        f.variant = value.value("variant", "");
        f.problem = value.value("problem", "");
        f.seconds = value.value("seconds", 0.0);
        for (const Json& trial : value.value("ways", Json::array())) f.trials.push_back(trial_from_json(trial));
        f.rates = value.value("rates", Rates{});
    }
    return findings;
}

bool is_of_products(const std::string& rate) { return rate == "fp32" || rate == "bf16" || rate == "fp8"; }

Rates rates_of(const Findings& findings) {
    Rates highest;
    for (const auto& [item, finding] : findings)
        for (const auto& [name, rate] : finding.rates) highest[name] = std::max(highest[name], rate);
    return highest;
}

Json request_json(const CheckRequest& r) {
    Json json = {{"device", r.device},
                 {"use", use_json(r.use)},
                 {"tf32", r.tf32},
                 {"fast_accumulation", static_cast<int>(r.fast_accumulation)},
                 {"tune", r.tune},
                 {"preferred", r.preferred},
                 {"item_seconds", r.item_seconds},
                 {"found", findings_json(r.found)},
                 {"products", Json::array()}};
    for (const Product& product : r.products) json["products"].push_back(product_json(product));
    return json;
}

CheckRequest request_from_json(const Json& json) {
    CheckRequest r;
    r.device = json.at("device");
    r.use = use_from_json(json.at("use"));
    r.tf32 = json.at("tf32");
    r.fast_accumulation = static_cast<FastAccumulation>(json.at("fast_accumulation").get<int>());
    r.tune = json.at("tune");
    r.preferred = json.at("preferred").get<std::map<std::string, std::string>>();
    r.item_seconds = json.at("item_seconds");
    r.found = findings_from_json(json.at("found"));
    for (const Json& product : json.at("products")) r.products.push_back(product_from_json(product));
    return r;
}

std::string CheckRequest::key(const Product& product) const {
    return Matmul(tf32, fast_accumulation, use.scaling).key(product);
}

Json choices_json(const ProductChoices& choices) {
    Json json = Json::object();
    for (const auto& [key, choice] : choices) json[key] = way_json(choice);
    return json;
}
ProductChoices choices_from_json(const Json& json) {
    ProductChoices choices;
    for (const auto& [key, value] : json.items()) choices[key] = way_from_json(value);
    return choices;
}

}  // namespace llmc
