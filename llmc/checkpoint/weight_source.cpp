// Opens weights of any format, imports them, and describes how two models differ.
#include "llmc/checkpoint/weight_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/checkpoint_weights.h"
#include "llmc/checkpoint/hf_weights.h"
#include "llmc/checkpoint/llmc_model.h"
#include "llmc/model/model_file.h"

namespace llmc {

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
    if (const std::string checkpoint = checkpoint_at(path); !checkpoint.empty())
        return std::make_unique<CheckpointWeights>(checkpoint);
    if (is_llmc_file(path)) return std::make_unique<LlmcWeights>(path);
    return std::make_unique<HfWeights>(path);
}

std::unique_ptr<WeightSource> open_weights(const std::string& path, const ModelConfig& model) {
    if (const std::string checkpoint = checkpoint_at(path); !checkpoint.empty())
        return std::make_unique<CheckpointWeights>(checkpoint, model);
    if (is_llmc_file(path)) return std::make_unique<LlmcWeights>(path, model);
    return std::make_unique<HfWeights>(path, model);
}

void import_weights(const WeightSource& source, const StoreTensor& store) {
    for (const TensorRow& row : all_tensors(source.model())) store(row.name, source.fetch(row.name));
}

void fetch_exactly(const std::string& path, const TensorRow& row, const FetchTensor& fetch, std::vector<float>& out) {
    const size_t count = static_cast<size_t>(row.count());
    out.clear();
    fetch(row.name, out);
    const bool padded = row.padded_rows > 0 && out.size() > count && out.size() % static_cast<size_t>(row.columns) == 0;
    if (out.size() != count && !padded)
        throw Error(ExitCode::checkpoint, strprintf("%s: parameter %s has %zu elements, %zu are needed", path.c_str(),
                                                    row.name.c_str(), out.size(), count));
    out.resize(count);
}

void require_numbers(const std::string& path, const ModelConfig& model) {
    constexpr int kMost = 1 << 17;  // of layers and channels
    const bool positive = model.layers > 0 && model.channels > 0 && model.heads > 0 && model.vocab > 0 &&
                          model.context > 0 && (model.own_head_dim > 0 || model.channels % model.heads == 0);
    if (positive && model.layers <= kMost && model.channels <= kMost) return;
    throw Error(ExitCode::checkpoint,
                strprintf("%s: layers=%d channels=%d heads=%d vocab=%d context=%d is not a GPT-2: all must be positive "
                          "and channels a multiple of heads",
                          path.c_str(), model.layers, model.channels, model.heads, model.vocab, model.context));
}

namespace {

const char* const kOfAll[] = {"layers", "heads", "channels", "vocab", "context"};

}  // namespace

std::string differences(const ModelConfig& there, const ModelConfig& here, const NamesOfNumbers& names) {
    const struct {
        const char* name;
        int there, here;
    } numbers[] = {{names.layers, there.layers, here.layers},
                   {names.heads, there.heads, here.heads},
                   {names.channels, there.channels, here.channels},
                   {names.context, there.context, here.context},
                   {names.vocab, there.vocab, here.vocab}};
    std::string text;
    if (there.architecture != here.architecture)
        text =
            strprintf("the architecture is %s, this model has %s", there.architecture->name, here.architecture->name);
    for (const auto& number : numbers) {
        if (number.there == number.here || number.there == 0) continue;
        text += strprintf("%s%s is %d, this model has %d", text.empty() ? "" : "; ", number.name, number.there,
                          number.here);
    }
    if (there.architecture != here.architecture) return text;
    const nlohmann::ordered_json ours = model_json(here), theirs = model_json(there);
    for (const auto& [name, value] : theirs.items()) {
        const bool is_number_above =
            std::any_of(std::begin(kOfAll), std::end(kOfAll), [&](const char* n) { return name == n; });
        const nlohmann::ordered_json mine = ours.value(name, nlohmann::ordered_json());
        if (is_number_above || value == mine) continue;
        text += strprintf("%s%s is %s, this model has %s", text.empty() ? "" : "; ", name.c_str(),
                          json_text(value).c_str(), json_text(mine).c_str());
    }
    return text;
}

}  // namespace llmc
