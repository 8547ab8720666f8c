// Finds the checkpoint that a path names, and reads a model's description and weights from it.
#include "llmc/checkpoint/checkpoint_weights.h"

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/finite.h"
#include "llmc/model/model_file.h"

namespace llmc {
namespace {

ModelConfig model_of(const CheckpointReader& reader) {
    const nlohmann::ordered_json& config = reader.manifest().config;
    const auto number = [&](const char* name) {
        const auto found = config.find(name);
        const bool is_number = found != config.end() && found->is_number_unsigned() && *found < (1 << 30);
        return is_number ? found->get<int>() : 0;
    };
    ModelConfig model;
    model.name = "checkpoint";
    model.layers = number("layers");
    model.heads = number("heads");
    model.channels = number("channels");
    model.vocab = number("vocab");
    model.context = number("context");
    // The flags only describe GPT-2; the manifest describes other architectures.
    const nlohmann::ordered_json& run = reader.manifest().run;
    if (run.contains("model")) try {
            model = model_from_json(nlohmann::json(run["model"]), reader.directory());
            model.name = "checkpoint";
        } catch (const Error& error) {
            throw Error(ExitCode::checkpoint, error.what());
        }
    require_numbers(reader.directory(), model);
    return model;
}

}  // namespace

std::string checkpoint_at(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::exists(path + "/" + kManifestName, ignored)) return path;
    if (std::filesystem::exists(path + "/model.safetensors", ignored)) return "";
    for (const FoundCheckpoint& found : find_checkpoints(path + "/checkpoints"))
        if (found.has_manifest) return found.path;
    return "";
}

CheckpointWeights::CheckpointWeights(const std::string& checkpoint) : reader_(checkpoint), model_(model_of(reader_)) {
    reader_.verify(Verify::full);
}

CheckpointWeights::CheckpointWeights(const std::string& checkpoint, const ModelConfig& model)
    : CheckpointWeights(checkpoint) {
    const std::string other = differences(model_, model, {"layers", "heads", "channels", "context", "vocab"});
    if (!other.empty())
        throw Error(ExitCode::checkpoint, strprintf("%s holds another model: %s", checkpoint.c_str(), other.c_str()));
    model_ = model;
}

int CheckpointWeights::end_token() const {
    const auto data = reader_.manifest().run.find("data");
    const bool known = data != reader_.manifest().run.end() && data->is_object() && data->contains("end_token");
    return known && data->at("end_token").is_number_unsigned() ? data->at("end_token").get<int>() : -1;
}

// Fetches the tensor with its padded rows.
std::vector<float> CheckpointWeights::fetch(const std::string& name) const {
    std::vector<float> values(reader_.tensor(name).elements());
    reader_.read(name, "master", 0, values.size(), values.data());
    require_finite(reader_.directory(), name, reader_.tensor(name).shape, values);
    return values;
}

}  // namespace llmc
