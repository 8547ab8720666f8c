// Where the weights of a model come from, one tensor at a time, whatever holds them: Hugging Face's files
// (hf_weights.h) or a model file of llm.c (llmc_model.h). What a source hands out has our names and our layout
// (model_table.h), has no padded rows, and is finite.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/model/config.h"

namespace llmc {

class WeightSource {
public:
    virtual ~WeightSource() = default;
    virtual const ModelConfig& model() const = 0;
    // "h.0.qkv.weight"; of all_tensors(model()).
    virtual std::vector<float> fetch(const std::string& name) const = 0;
    // The token that begins every document of the training data; -1 if unknown.
    virtual int end_token() const { return -1; }
};

// The source that the path names: a training checkpoint or the run that has one (its newest), a file that begins with
// llm.c's magic or is called .bin, or anything of Hugging Face's. The first form takes the model as the file describes
// it, the second refuses a file that holds another.
std::unique_ptr<WeightSource> open_weights(const std::string& path);
std::unique_ptr<WeightSource> open_weights(const std::string& path, const ModelConfig& model);

// What open_weights() takes, for --help.
constexpr const char* kWeightsHelp =
    "a checkpoint, a run (its newest checkpoint is used), a Hugging Face directory, a .safetensors file next to its "
    "config.json, or an llm.c model file (.bin)";

// Hands over every parameter once.
using StoreTensor = std::function<void(const std::string& name, const std::vector<float>& values)>;
void import_weights(const WeightSource& source, const StoreTensor& store);

// What an export asks for: `out` becomes one parameter in our layout, with padded rows or without.
using FetchTensor = std::function<void(const std::string& name, std::vector<float>& out)>;
// Calls it and leaves padded rows out. `path`: for the message where the count is wrong.
void fetch_exactly(const std::string& path, const TensorRow& row, const FetchTensor& fetch, std::vector<float>& out);

// Throws unless the numbers can be those of a model, and small enough that its size can be computed.
void require_numbers(const std::string& path, const ModelConfig& model);

// Where two models differ: "layers is 2, this model has 3; vocab is 257, this model has 50257". Numbers that `there`
// does not say (0) differ from none.
struct NamesOfNumbers {
    const char *layers, *heads, *channels, *context, *vocab;
};
std::string differences(const ModelConfig& there, const ModelConfig& here, const NamesOfNumbers& names);

}  // namespace llmc
