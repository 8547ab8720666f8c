// Opens weights of any format, imports them, and describes how two models differ. Also reads the weights of training
// checkpoints.
#include "llmc/checkpoint/weight_source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/hf_weights.h"
#include "llmc/checkpoint/llmc_model.h"
#include "llmc/model/model_file.h"

namespace llmc {

// `model` describes weights without a config.json; nullptr if there is no such model.
static std::unique_ptr<WeightSource> open(const std::string& path, const ModelConfig* model) {
    if (const std::string checkpoint = checkpoint_at(path); !checkpoint.empty())
        return std::make_unique<CheckpointWeights>(checkpoint);
    if (is_llmc_file(path)) return std::make_unique<LlmcWeights>(path);
    return std::make_unique<HfWeights>(path, model);
}

std::unique_ptr<WeightSource> open_weights(const std::string& path, bool average) {
    if (!average) return open(path, nullptr);
    const std::string checkpoint = newest_checkpoint(path);
    if (checkpoint.empty()) refuse_file(path, "no checkpoint here, and only those have an average of the weights");
    return std::make_unique<CheckpointWeights>(checkpoint, "average");
}

std::unique_ptr<WeightSource> open_weights(const std::string& path, const ModelConfig& model) {
    std::unique_ptr<WeightSource> source = open(path, &model);
    const ModelConfig& there = source->model;
    const std::string difference = differences(there, model);
    if (difference.empty()) return source;
    const std::string flags = fmt::format(": --layers {} --heads {} --channels {} --context {} --vocab {}",
                                          there.layers, there.heads, there.channels, there.context, there.vocab);
    refuse_file(path, "holds another model: {}; choose the model that it holds{}", difference,
                there.architecture == &kGpt2 ? flags : "");
}

void import_weights(const WeightSource& source, const StoreTensor& store) {
    for (const TensorRow& row : all_tensors(source.model)) {
        show_status("reading " + row.name);
        store(row.name, source.fetch(row.name));
    }
    clear_status();
}

void fetch_exactly(const std::string& path, const TensorRow& row, const FetchTensor& fetch, std::vector<float>& out) {
    const size_t count = static_cast<size_t>(row.count());
    out.clear();
    fetch(row.name, out);
    const bool padded = row.padded_rows > 0 && out.size() > count && out.size() % static_cast<size_t>(row.columns) == 0;
    if (out.size() != count && !padded)
        refuse_file(path, "parameter {} has {} elements, {} are needed", row.name, out.size(), count);
    out.resize(count);
}

void require_numbers(const std::string& path, const ModelConfig& model) {
    constexpr int kMost = 1 << 17, kMostRows = 1 << 30;
    const bool positive = model.layers > 0 && model.channels > 0 && model.heads > 0 && model.vocab > 0 &&
                          model.context > 0 && (model.own_head_dim > 0 || model.channels % model.heads == 0);
    if (positive && model.layers <= kMost && model.channels <= kMost && model.vocab <= kMostRows &&
        model.context <= kMostRows)
        return;
    refuse_file(path,
                "layers={} channels={} heads={} vocab={} context={} is not a possible model: all must be positive, "
                "channels a multiple of heads, layers and channels at most {}, vocab and context at most {}",
                model.layers, model.channels, model.heads, model.vocab, model.context, kMost, kMostRows);
}

ModelConfig described_by(const std::function<ModelConfig()>& description) {
    try {
        return description();
    } catch (const Error& error) {
        throw Error(ExitCode::checkpoint, error.what());
    }
}

static ModelConfig model_of(const CheckpointReader& reader) {
    const Json& config = *reader.manifest().config;
    const Json& run = *reader.manifest().run;
    const auto number = [&](const char* name) {
        const auto found = config.find(name);
        const bool is_number = found != config.end() && found->is_number_unsigned() && *found < (1 << 30);
        return is_number ? found->get<int>() : 0;
    };
    ModelConfig model;
    if (run.contains("model")) {
        model = described_by([&] { return model_from_json(run["model"], reader.directory()); });
    } else {  // the model is GPT-2, and the run's flags describe it
        model.layers = number("layers");
        model.heads = number("heads");
        model.channels = number("channels");
        model.vocab = number("vocab");
        model.context = number("context");
    }
    model.name = "checkpoint";
    require_numbers(reader.directory(), model);
    return model;
}

std::string checkpoint_at(const std::string& path) {
    const bool is_checkpoint = path_exists(path + "/" + kManifestName);
    return path_exists(path + "/model.safetensors") && !is_checkpoint ? "" : newest_checkpoint(path);
}

std::string newest_checkpoint(const std::string& path) {
    if (path_exists(path + "/" + kManifestName)) return path;
    for (const FoundCheckpoint& found : find_checkpoints(path + "/checkpoints"))
        if (found.has_manifest) return found.path;
    return "";
}

CheckpointWeights::CheckpointWeights(const std::string& checkpoint, const char* part)
    : WeightSource(checkpoint), reader_(checkpoint), part_(part) {
    model = model_of(reader_);
    const Json &state = *reader_.manifest().state, &run = *reader_.manifest().run;
    const Json::json_pointer count("/average/count"), token("/data/end_token"), hash("/data/tokenizer_hash");
    const bool has_average = state.contains(count) && state[count].is_number_unsigned() && state[count] > 0;
    if (part_ == "average" && !has_average)
        throw Error(ExitCode::checkpoint, "{} has no average of the weights: its run had no --average", checkpoint);
    if (run.contains(token) && run[token].is_number_unsigned()) begin_token = end_token = run[token].get<int>();
    if (run.contains(hash) && run[hash].is_string()) tokenizer_hash = run[hash].get<std::string>();
}

// Fetches the tensor with its padded rows.
std::vector<float> CheckpointWeights::fetch(const std::string& name) const {
    std::vector<float> values(reader_.tensor(name).elements());
    reader_.read(name, part_, 0, values.size(), values.data());
    require_finite(reader_.directory(), name, reader_.tensor(name).shape, values);
    return values;
}

void require_finite(const std::string& path, const std::string& tensor, const std::vector<int64_t>& shape,
                    const std::vector<float>& values) {
    const auto found = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (found == values.end()) return;
    const char* const what = std::isnan(*found) ? "NaN" : *found > 0 ? "Inf" : "-Inf";
    const int64_t at = found - values.begin(), rows = std::max<int64_t>(shape.empty() ? 1 : shape[0], 1);
    const int64_t columns = std::max<int64_t>(static_cast<int64_t>(values.size()) / rows, 1);
    const std::string place =
        shape.size() < 2 ? fmt::format("element {}", at) : fmt::format("row {}, column {}", at / columns, at % columns);
    refuse_file(path, "{} has {} at {}; a run that starts from it would compute nothing but NaN", tensor, what, place);
}

void ZeroWeights::look(const std::string& name, const std::vector<float>& values) {
    if (name.ends_with(".bias") || std::any_of(values.begin(), values.end(), [](float x) { return x != 0; })) return;
    if (name == "wte") refuse_file(path_, "all values of {} are zero", name);
    if (count_++ == 0) first_ = name;
}

void ZeroWeights::note() const {
    if (count_ > 0)
        print_line("note: all values of {}{} are zero in {}; if that model was trained, the file is incomplete", first_,
                   count_ == 1 ? "" : fmt::format(" and of {} more", count_ - 1), path_);
}

std::vector<std::string> weight_directories(const std::string& from) {
    std::error_code ignored;
    const std::filesystem::path path = std::filesystem::absolute(from, ignored).lexically_normal();
    const std::filesystem::path directory =
        std::filesystem::is_directory(path, ignored) && path.has_filename() ? path : path.parent_path();
    std::vector<std::string> directories{directory.string()};
    if (directory.parent_path().filename() == "checkpoints")
        directories.push_back(directory.parent_path().parent_path().string());
    return directories;
}

}  // namespace llmc
