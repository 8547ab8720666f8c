// A trainer's state as JSON, and its weights in files of other programs. See state.h.
// build: fuzzed
#include "llmc/train/state.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "llmc/checkpoint/hf_weights.h"
#include "llmc/comm/agreement.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

[[noreturn]] void fail(const std::string& problem) {
    throw Error(ExitCode::checkpoint, std::string(kManifestName) + ": its \"state\" " + problem);
}

Json number(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double real(const Json& json) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (json.is_number()) return json.get<double>();
    if (json == "inf") return infinity;
    if (json == "-inf") return -infinity;
    if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
    fail(fmt::format("holds {} where a number belongs", json_text(json).substr(0, 40)));
}

float as_float(double value) {
    const bool fits = !std::isfinite(value) || std::abs(value) <= std::numeric_limits<float>::max();
    if (!fits) fail(fmt::format("holds {:g}, which is not a float", value));
    return static_cast<float>(value);
}

const Json& list(const Json& json, const char* name) {
    if (!json.is_array()) fail(fmt::format("has \"{}\", which is not a list", name));
    return json;
}

// The fields of a JSON object. A function list_fields() names each field of a struct once, and so both writes and reads
// the struct. Reading fails with a message that names the field.
class Fields {
public:
    explicit Fields(const Json& read) : read_(&read) {}
    explicit Fields(Json* written) : written_(written) {}

    bool writes() const { return written_ != nullptr; }
    // For a field that is not always there: writes it on this condition, reads it if it is there.
    bool has(const char* name, bool condition = true) const { return writes() ? condition : read_->contains(name); }

    template <class T>
    void operator()(const char* name, T& value) const {
        if (writes())
            (*written_)[name] = json_of(value);
        else
            read(field(name), name, value);
    }
    // An object in this one: list(fields) lists its fields.
    template <class List>
    void object(const char* name, List&& list) const {
        if (writes())
            list(Fields(&(*written_)[name]));
        else
            list(Fields(field(name)));
    }

private:
    const Json& field(const char* name) const {
        if (!read_->is_object() || !read_->contains(name)) fail(fmt::format("has no \"{}\"", name));
        return read_->at(name);
    }

    template <class T>
    static Json json_of(T& value) {
        Json json;
        if constexpr (std::is_floating_point_v<T>) {
            json = number(value);
        } else if constexpr (std::is_integral_v<T> || std::is_same_v<T, std::string>) {
            json = value;
        } else if constexpr (requires { std::size(value); }) {
            json = Json::array();
            for (auto& element : value) json.push_back(json_of(element));
        } else {
            list_fields(Fields(&json), value);
        }
        return json;
    }

    template <class T>
    static void read(const Json& json, const char* name, T& value) {
        if constexpr (std::is_same_v<T, bool>) {
            if (!json.is_boolean()) fail(fmt::format("has \"{}\", which is neither true nor false", name));
            value = json.get<bool>();
        } else if constexpr (std::is_same_v<T, std::string>) {
            if (!json.is_string()) fail(fmt::format("has \"{}\", which is not text", name));
            value = json.get<std::string>();
        } else if constexpr (std::is_same_v<T, float>) {
            value = as_float(real(json));
        } else if constexpr (std::is_same_v<T, double>) {
            value = real(json);
        } else if constexpr (std::is_integral_v<T>) {
            if (!json.is_number_unsigned())
                fail(fmt::format("has \"{}\", which is not a whole number of 0 or more", name));
            const uint64_t n = json.get<uint64_t>();
            // Signed numbers count steps. The limit leaves room for adding to them.
            if (std::is_signed_v<T> && n > std::min<uint64_t>(uint64_t{1} << 50, std::numeric_limits<T>::max()))
                fail(fmt::format("has \"{}\", which is too large", name));
            value = static_cast<T>(n);
        } else if constexpr (requires { value.push_back(value[0]); }) {
            value.clear();
            for (const Json& element : list(json, name)) read(element, name, value.emplace_back());
        } else if constexpr (requires { std::size(value); }) {
            if (list(json, name).size() != std::size(value))
                fail(fmt::format("has {} numbers in \"{}\", this program keeps {}", json.size(), name,
                                 std::size(value)));
            for (size_t i = 0; i < std::size(value); i++) read(json[i], name, value[i]);
        } else {
            list_fields(Fields(json), value);
        }
    }

    const Json* read_ = nullptr;
    Json* written_ = nullptr;
};

void list_fields(const Fields& field, SpikeState& spikes) {
    field("accepted", spikes.accepted);
    if (field.has("in_a_row")) field("in_a_row", spikes.in_a_row);  // older checkpoints lack it
    field("loss_limit", spikes.loss_limit);
    field("norm_limit", spikes.norm_limit);
    field("loss", spikes.loss);
    field("norm", spikes.norm);
}

void list_fields(const Fields& field, Fp8SavedTensor& t) {
    field("name", t.name);
    field("scale", t.state.scale);
    field("scale_inv", t.state.scale_inv);
    field("amax", t.state.amax);
    field("last_amax", t.state.last_amax);
    field("elements", t.state.elements);
    field("saturated", t.state.saturated);
    field("underflowed", t.state.underflowed);
    field("nonfinite", t.state.nonfinite);
    field("watched_elements", t.watch.elements);
    field("watched_saturated", t.watch.saturated);
    field("watched_underflowed", t.watch.underflowed);
    field("saturating", t.watch.saturating);
    field("underflowing", t.watch.underflowing);
    field("verdict", t.verdict.reason);
    field("verdict_fraction", t.verdict.fraction);
    field("history", t.history);
}

void list_fields(const Fields& field, Fp8Saved& fp8) {
    field("rule", fp8.rule);
    field("calibrated", fp8.calibrated);
    field("watched", fp8.watched);
    field("left", fp8.left);
    field("tensors", fp8.tensors);
}

void list_fields(const Fields& field, TrainerState& state) {
    OptimizerState& o = state.optimizer;
    field("applied", o.step.applied);
    field("skipped", o.step.skipped);
    field("consecutive_skips", o.step.consecutive_skips);
    field.object("loss_scale", [&](const Fields& scale) {
        scale("dynamic", o.dynamic);
        scale("scale", o.loss_scale.scale);
        scale("clean_steps", o.loss_scale.clean_steps);
    });
    field("spikes", o.spikes);
    if (field.has("average", o.averaged > 0))
        field.object("average", [&](const Fields& average) {
            std::string kind = "ema";  // earlier versions had others, with which no run goes on
            average("kind", kind);
            average("count", o.averaged);
            if (kind != "ema") o.averaged = 0;
        });
    if (field.has("fp8", state.fp8.has_value())) {
        if (!state.fp8) state.fp8.emplace();
        field("fp8", *state.fp8);
    }
    if (field.has("residuals", state.residuals > 0)) field("residuals", state.residuals);
    if (field.has("residual_alignment", state.residuals > 0)) field("residual_alignment", state.residual_alignment);
}

}  // namespace

Json state_json(const TrainerState& state) {
    TrainerState listed = state;
    Json json;
    list_fields(Fields(&json), listed);
    return json;
}

TrainerState state_from_json(const Json& json) {
    TrainerState state;
    list_fields(Fields(json), state);
    return state;
}

void verify_weights(const WeightSource& weights, const Comm& comm, const std::function<void()>& alive) {
    const auto rank = static_cast<size_t>(comm.rank()), world = static_cast<size_t>(comm.world());
    do_together(comm, [&] { weights.verify(rank, world, alive); });
}

template <class Real>
void load_weights(Trainer<Real>& trainer, const WeightSource& weights, const std::string& name,
                  const std::function<void()>& alive) {
    const bool compares = trainer.comm().world() > 1;
    std::vector<uint64_t> checksums;
    ZeroWeights zeros(name);
    import_weights(weights, [&](const std::string& tensor, const std::vector<float>& values) {
        alive();
        zeros.look(tensor, values);
        if (compares) checksums.push_back(checksum(values.data(), values.size() * sizeof(float)));
        trainer.set_weight(tensor, values);
    });
    if (compares)
        require_same_inputs(trainer.comm(), {{"set of weights from " + name,
                                              checksum(checksums.data(), checksums.size() * sizeof(uint64_t))}});
    if (trainer.comm().is_main()) zeros.note();
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

template void load_weights(Trainer<float>&, const WeightSource&, const std::string&, const std::function<void()>&);
template void load_weights(Trainer<bf16>&, const WeightSource&, const std::string&, const std::function<void()>&);
template void save_weights(const Trainer<float>&, const std::string&, int);
template void save_weights(const Trainer<bf16>&, const std::string&, int);

}  // namespace llmc
