#include "llmc/check/findings.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

Json way_json(const ProductChoice& way) {
    Json json = Json::object();
    if (!way.algorithm.empty()) json["algorithm"] = way.algorithm;
    if (way.emulated) json["emulated"] = true;
    if (way.separate_bias) json["separate_bias"] = true;
    return json;
}
ProductChoice way_from_json(const Json& json) {
    return {json.value("algorithm", ""), json.value("emulated", false), json.value("separate_bias", false)};
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

Json use_json(const KernelUse& u) {
    return {{"bf16", u.bf16},
            {"fp8", u.fp8},
            {"scaling", static_cast<int>(u.scaling)},
            {"e4m3_gradients", u.e4m3_gradients},
            {"current_scaling", u.current_scaling},
            {"several_ranks", u.several_ranks},
            {"optimizer", static_cast<int>(u.optimizer)},
            {"channels", u.channels},
            {"heads", u.heads},
            {"kv_heads", u.kv_heads},
            {"head_dim", u.head_dim},
            {"hidden", u.hidden},
            {"vocab", u.vocab},
            {"padded_vocab", u.padded_vocab},
            {"layer_norm", u.layer_norm},
            {"rms_norm", u.rms_norm},
            {"rms_norm_without_gains", u.rms_norm_without_gains},
            {"biases", u.biases},
            {"position_embedding", u.position_embedding},
            {"qk_norm", u.qk_norm},
            {"qk_gains", u.qk_gains},
            {"activation", static_cast<int>(u.activation)},
            {"logit_cap", u.logit_cap},
            {"documents", u.documents},
            {"z_loss", u.loss.z_loss},
            {"label_smoothing", u.loss.label_smoothing}};
}
KernelUse use_from_json(const Json& j) {
    KernelUse u;
    u.bf16 = j.at("bf16");
    u.fp8 = j.at("fp8");
    u.scaling = static_cast<Fp8Scaling>(j.at("scaling").get<int>());
    u.e4m3_gradients = j.at("e4m3_gradients");
    u.current_scaling = j.at("current_scaling");
    u.several_ranks = j.at("several_ranks");
    u.optimizer = static_cast<OptimizerKind>(j.at("optimizer").get<int>());
    u.channels = j.at("channels");
    u.heads = j.at("heads");
    u.kv_heads = j.at("kv_heads");
    u.head_dim = j.at("head_dim");
    u.hidden = j.at("hidden");
    u.vocab = j.at("vocab");
    u.padded_vocab = j.at("padded_vocab");
    u.layer_norm = j.at("layer_norm");
    u.rms_norm = j.at("rms_norm");
    u.rms_norm_without_gains = j.at("rms_norm_without_gains");
    u.biases = j.at("biases");
    u.position_embedding = j.at("position_embedding");
    u.qk_norm = j.at("qk_norm");
    u.qk_gains = j.at("qk_gains");
    u.activation = static_cast<Activation>(j.at("activation").get<int>());
    u.logit_cap = j.at("logit_cap");
    u.documents = j.at("documents");
    u.loss = {j.at("z_loss"), j.at("label_smoothing")};
    return u;
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
    }
    return findings;
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
