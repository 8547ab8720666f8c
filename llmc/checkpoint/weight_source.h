// A source of a model's weights, one tensor at a time: Hugging Face's files (hf_weights.h), a model file of llm.c
// (llmc_model.h) or a training checkpoint. The tensors have our names and layout (architecture.h) and only finite
// values. Those of a checkpoint have their padded rows, the others have none.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/model/config.h"

namespace llmc {

class WeightSource {
public:
    explicit WeightSource(const std::string& path) : place(path) {}
    virtual ~WeightSource() = default;
    // Returns one tensor of all_tensors(model), for example "h.0.qkv.weight".
    virtual std::vector<float> fetch(const std::string& name) const = 0;
    // Checks every byte of one of `parts` equal parts, if the source has checksums (CheckpointReader::verify()).
    using Alive = CheckpointReader::Alive;
    virtual void verify(
        size_t /*part*/ = 0, size_t /*parts*/ = 1, const Alive& = [] {}) const {}

    std::string place;  // the file or directory; if a run was named, the checkpoint that was chosen
    ModelConfig model;
    bool describes_model = true;  // false if a file of weights alone was taken for a given model
    // The token that begins every document of the training data, or -1 if unknown. The two differ only for models of
    // other programs, which may end documents with another token.
    int begin_token = -1, end_token = -1;
    std::vector<int> end_tokens;                // all tokens that end a text, for a chat model of another program
    std::optional<std::string> tokenizer_hash;  // of the training data, as sidecars name it; nothing if unknown
};

// Opens the source that the path names: a training checkpoint, a run with one (its newest), a file that begins with
// llm.c's magic number or is called .bin, or any of Hugging Face's forms. The average of the weights (--average) is
// only in training checkpoints, also in those of a run that has finished.
std::unique_ptr<WeightSource> open_weights(const std::string& path, bool average = false);
// The same for a run of this model. Refuses a source of a different model. A .safetensors file needs no config.json.
std::unique_ptr<WeightSource> open_weights(const std::string& path, const ModelConfig& model);

// The directory of the weights that `from` names, and the run directory that a checkpoint belongs to.
std::vector<std::string> weight_directories(const std::string& from);

// Passes every parameter to `store` once.
using StoreTensor = std::function<void(const std::string& name, const std::vector<float>& values)>;
void import_weights(const WeightSource& source, const StoreTensor& store);

// Fetches one parameter in our layout for an export, with or without padded rows, into `out`.
using FetchTensor = std::function<void(const std::string& name, std::vector<float>& out)>;
// Calls `fetch` and drops padded rows. `path` is for the message if the number of values is wrong.
void fetch_exactly(const std::string& path, const TensorRow& row, const FetchTensor& fetch, std::vector<float>& out);

// Throws unless the numbers are possible for a model and small enough that its size can be computed.
void require_numbers(const std::string& path, const ModelConfig& model);

// Returns the model that a description next to some weights has. Its errors become Error(checkpoint).
ModelConfig described_by(const std::function<ModelConfig()>& description);

// ---- training checkpoints -------------------------------------------------------------------------------------------

// The checkpoint that a path names: itself, or a run's newest complete checkpoint. "" if there is none, or if the run
// has finished and left a model.safetensors.
std::string checkpoint_at(const std::string& path);
// The same for a run that has finished: its newest complete checkpoint.
std::string newest_checkpoint(const std::string& path);

// The FP32 master weights of a training checkpoint, or their average, for --init-from and export.
class CheckpointWeights : public WeightSource {
public:
    explicit CheckpointWeights(const std::string& checkpoint, const char* part = "master");
    std::vector<float> fetch(const std::string& name) const override;
    void verify(size_t part, size_t parts, const Alive& alive) const override {
        reader_.verify(Verify::full, part, parts, alive);
    }

private:
    const CheckpointReader reader_;
    const std::string part_;
};

// ---- weights that are not finite ------------------------------------------------------------------------------------

// Refuses NaN and Inf when weights are read: one such value would turn every loss into NaN, steps later.
// Throws Error(checkpoint) at the first non-finite value: "FILE: h.3.fc.weight has NaN at row 5, column 7". Rows and
// columns count from 0 in the tensor's shape in the file; the column index combines all dimensions but the first.
void require_finite(const std::string& path, const std::string& tensor, const std::vector<int64_t>& shape,
                    const std::vector<float>& values);

// Finds weights whose values are all zero, as in the holes of an incomplete download. Biases may be zero, and some
// weights of a model that was not trained.
class ZeroWeights {
public:
    explicit ZeroWeights(std::string path) : path_(std::move(path)) {}
    void look(const std::string& name, const std::vector<float>& values);  // throws for an embedding of zeros
    void note() const;                                                     // prints a line if there are any

private:
    std::string path_, first_;
    int count_ = 0;
};

}  // namespace llmc
