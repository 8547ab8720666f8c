// A trainer's state as JSON, and its weights in files of other programs. See state.h.
// build: fuzzed
#include "llmc/train/state.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/hf_weights.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/train/trainer.h"
#include "llmc/train/words.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& problem) {
    throw Error(ExitCode::checkpoint, std::string(kManifestName) + ": its \"state\" " + problem);
}

Json number(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

const Json& field(const Json& object, const char* name) {
    if (!object.is_object() || !object.contains(name)) fail(fmt::format("has no \"{}\"", name));
    return object.at(name);
}

double real(const Json& value) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (value.is_number()) return value.get<double>();
    if (value == "inf") return infinity;
    if (value == "-inf") return -infinity;
    if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
    fail(fmt::format("holds {} where a number belongs", json_text(value).substr(0, 40)));
}
double real(const Json& object, const char* name) { return real(field(object, name)); }
float as_float(double value) {
    const bool fits = !std::isfinite(value) || std::abs(value) <= std::numeric_limits<float>::max();
    if (!fits) fail(fmt::format("holds {:g}, which is not a float", value));
    return static_cast<float>(value);
}
float real32(const Json& object, const char* name) { return as_float(real(object, name)); }

uint64_t whole(const Json& object, const char* name) {
    const Json& value = field(object, name);
    if (!value.is_number_unsigned()) fail(fmt::format("has \"{}\", which is not a whole number of 0 or more", name));
    return value.get<uint64_t>();
}
// A number of steps. The limit leaves room for adding to it.
int64_t count(const Json& object, const char* name) {
    const uint64_t n = whole(object, name);
    if (n > (uint64_t{1} << 50)) fail(fmt::format("has \"{}\", which is too large", name));
    return static_cast<int64_t>(n);
}
bool yes(const Json& object, const char* name) {
    if (!field(object, name).is_boolean()) fail(fmt::format("has \"{}\", which is neither true nor false", name));
    return field(object, name).get<bool>();
}
std::string text(const Json& value) {
    if (!value.is_string()) fail("has a name that is not text");
    return value.get<std::string>();
}
const Json& list(const Json& object, const char* name) {
    if (!field(object, name).is_array()) fail(fmt::format("has \"{}\", which is not a list", name));
    return field(object, name);
}

// ---- spikes ---------------------------------------------------------------------------------------------------------

Json spikes_json(const SpikeState& spikes) {
    Json loss = Json::array(), norm = Json::array();
    for (int i = 0; i < kSpikeWindow; i++) {
        loss.push_back(number(spikes.loss[i]));
        norm.push_back(number(spikes.norm[i]));
    }
    return {{"accepted", spikes.accepted},
            {"in_a_row", spikes.in_a_row},
            {"loss_limit", number(spikes.loss_limit)},
            {"norm_limit", number(spikes.norm_limit)},
            {"loss", loss},
            {"norm", norm}};
}

SpikeState spikes_from_json(const Json& json) {
    SpikeState spikes{};
    spikes.accepted = count(json, "accepted");
    if (json.contains("in_a_row")) spikes.in_a_row = count(json, "in_a_row");  // older checkpoints lack it
    spikes.loss_limit = real(json, "loss_limit");
    spikes.norm_limit = real(json, "norm_limit");
    const Json &loss = list(json, "loss"), &norm = list(json, "norm");
    if (loss.size() != kSpikeWindow || norm.size() != kSpikeWindow)
        fail(fmt::format("has windows of {} losses and {} norms, this program keeps {}", loss.size(), norm.size(),
                         kSpikeWindow));
    for (size_t i = 0; i < kSpikeWindow; i++) {
        spikes.loss[i] = real(loss[i]);
        spikes.norm[i] = real(norm[i]);
    }
    return spikes;
}

// ---- FP8 ------------------------------------------------------------------------------------------------------------

Json tensor_json(const Fp8SavedTensor& t) {
    Json history = Json::array();
    for (const float amax : t.history) history.push_back(number(amax));
    Json json{{"name", t.name},
              {"scale", number(t.state.scale)},
              {"scale_inv", number(t.state.scale_inv)},
              {"amax", number(t.state.amax)},
              {"last_amax", number(t.state.last_amax)},
              {"elements", t.state.elements},
              {"saturated", t.state.saturated},
              {"underflowed", t.state.underflowed},
              {"nonfinite", t.state.nonfinite},
              {"watched_elements", t.watch.elements},
              {"watched_saturated", t.watch.saturated},
              {"watched_underflowed", t.watch.underflowed},
              {"saturating", t.watch.saturating},
              {"underflowing", t.watch.underflowing},
              {"verdict", t.verdict.reason},
              {"verdict_fraction", number(t.verdict.fraction)},
              {"history", history}};
    if (!t.smoothing.empty()) json["smoothing"] = t.smoothing;
    return json;
}

Fp8SavedTensor tensor_from_json(const Json& json) {
    Fp8SavedTensor t;
    t.name = text(field(json, "name"));
    t.state.scale = real32(json, "scale");
    t.state.scale_inv = real32(json, "scale_inv");
    t.state.amax = real32(json, "amax");
    t.state.last_amax = real32(json, "last_amax");
    t.state.elements = whole(json, "elements");
    t.state.saturated = whole(json, "saturated");
    t.state.underflowed = whole(json, "underflowed");
    t.state.nonfinite = whole(json, "nonfinite");
    t.watch.elements = whole(json, "watched_elements");
    t.watch.saturated = whole(json, "watched_saturated");
    t.watch.underflowed = whole(json, "watched_underflowed");
    t.watch.saturating = static_cast<int>(count(json, "saturating"));
    t.watch.underflowing = static_cast<int>(count(json, "underflowing"));
    t.verdict.reason = static_cast<int>(count(json, "verdict"));
    t.verdict.fraction = real32(json, "verdict_fraction");
    for (const Json& amax : list(json, "history")) t.history.push_back(as_float(real(amax)));
    if (json.contains("smoothing")) t.smoothing = text(json["smoothing"]);
    return t;
}

Json outliers_json(const Fp8Outliers& layer) {
    Json json = Json::array();
    for (const double sum : layer.moments) json.push_back(number(sum));
    for (const float alignment : layer.alignment) json.push_back(number(alignment));
    return json;
}

Fp8Outliers outliers_from_json(const Json& json) {
    Fp8Outliers layer;
    if (!json.is_array() || json.size() != std::size(layer.moments) + std::size(layer.alignment))
        fail("has other numbers in \"outliers\" than three sums and two alignments of each layer");
    for (size_t i = 0; i < std::size(layer.moments); i++) layer.moments[i] = real(json[i]);
    for (size_t i = 0; i < std::size(layer.alignment); i++)
        layer.alignment[i] = as_float(real(json[std::size(layer.moments) + i]));
    return layer;
}

Fp8RankSums::Row probed_from_json(const Json& json) {
    Fp8RankSums::Row sums;
    if (!json.is_array() || json.size() != sums.size())
        fail("has other numbers in \"probed\" than three sums of each product");
    for (size_t i = 0; i < sums.size(); i++) sums[i] = real(json[i]);
    return sums;
}

Json fp8_json(const Fp8Saved& fp8) {
    Json tensors = Json::array(), outliers = Json::array(), probed = Json::array();
    for (const Fp8SavedTensor& tensor : fp8.tensors) tensors.push_back(tensor_json(tensor));
    for (const Fp8Outliers& layer : fp8.outliers) outliers.push_back(outliers_json(layer));
    for (const Fp8RankSums::Row& product : fp8.probed)
        probed.push_back({number(product[0]), number(product[1]), number(product[2])});
    return {{"rule", fp8.rule},   {"calibrated", fp8.calibrated}, {"watched", fp8.watched}, {"left", fp8.left},
            {"tensors", tensors}, {"outliers", outliers},         {"probed", probed}};
}

Fp8Saved fp8_from_json(const Json& json) {
    Fp8Saved fp8;
    fp8.rule = text(field(json, "rule"));
    fp8.calibrated = yes(json, "calibrated");
    fp8.watched = yes(json, "watched");
    for (const Json& layer : list(json, "left")) fp8.left.push_back(text(layer));
    for (const Json& tensor : list(json, "tensors")) fp8.tensors.push_back(tensor_from_json(tensor));
    if (json.contains("outliers"))  // older states have neither
        for (const Json& layer : list(json, "outliers")) fp8.outliers.push_back(outliers_from_json(layer));
    if (json.contains("probed"))
        for (const Json& product : list(json, "probed")) fp8.probed.push_back(probed_from_json(product));
    return fp8;
}

}  // namespace

Json state_json(const TrainerState& state) {
    const OptimizerState& o = state.optimizer;
    Json json{{"applied", o.applied},
              {"skipped", o.skipped},
              {"consecutive_skips", o.consecutive_skips},
              {"loss_scale", {{"dynamic", o.dynamic}, {"scale", number(o.loss_scale)}, {"clean_steps", o.clean_steps}}},
              {"spikes", spikes_json(o.spikes)}};
    if (o.average.kind != AverageKind::none)
        json["average"] = {{"kind", word_of(o.average.kind)}, {"count", o.average.count}};
    if (state.fp8) json["fp8"] = fp8_json(*state.fp8);
    if (state.residuals > 0) json["residuals"] = state.residuals;
    return json;
}

TrainerState state_from_json(const Json& json) {
    TrainerState state;
    OptimizerState& o = state.optimizer;
    o.applied = count(json, "applied");
    o.skipped = count(json, "skipped");
    o.consecutive_skips = static_cast<int32_t>(count(json, "consecutive_skips"));
    const Json& scale = field(json, "loss_scale");
    o.loss_scale = real32(scale, "scale");
    o.clean_steps = static_cast<int32_t>(count(scale, "clean_steps"));
    o.dynamic = yes(scale, "dynamic");
    o.spikes = spikes_from_json(field(json, "spikes"));
    if (json.contains("average")) {
        const Json& average = json["average"];
        const std::optional<AverageKind> kind = value_of_word<AverageKind>(text(field(average, "kind")));
        if (!kind) fail("has an \"average\" of a kind that this program does not know");
        o.average = {*kind, count(average, "count")};
    }
    if (json.contains("fp8")) state.fp8 = fp8_from_json(json["fp8"]);
    if (json.contains("residuals")) state.residuals = static_cast<int>(count(json, "residuals"));
    return state;
}

// ---- weights alone --------------------------------------------------------------------------------------------------

template <class Real>
void load_weights(Trainer<Real>& trainer, const std::string& path) {
    import_weights(
        *open_weights(path, trainer.config().model),
        [&](const std::string& name, const std::vector<float>& values) { trainer.set_weight(name, values); });
    trainer.weights_are_set();
}

template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path, int end_token) {
    if (trainer.comm().is_main())
        export_hf(path, trainer.config().model, end_token,
                  [&](const std::string& name, std::vector<float>& values) { values = trainer.get_weight(name); });
    else
        for (const TensorRow& row : all_tensors(trainer.config().model)) trainer.get_weight(row.name);
}

template void load_weights(Trainer<float>&, const std::string&);
template void load_weights(Trainer<bf16>&, const std::string&);
template void save_weights(const Trainer<float>&, const std::string&, int);
template void save_weights(const Trainer<bf16>&, const std::string&, int);

}  // namespace llmc
