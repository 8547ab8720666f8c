// The FP32 master weights of a training checkpoint, for --init-from and export.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/checkpoint/weight_source.h"

namespace llmc {

// The checkpoint that a path names: itself, or a run's newest complete checkpoint. "" if there is none, or if the run
// has finished and left a model.safetensors.
std::string checkpoint_at(const std::string& path);

class CheckpointWeights : public WeightSource {
public:
    // Both constructors check every byte first. The second refuses a checkpoint of another model.
    explicit CheckpointWeights(const std::string& checkpoint);
    CheckpointWeights(const std::string& checkpoint, const ModelConfig& model);

    const ModelConfig& model() const override { return model_; }
    std::vector<float> fetch(const std::string& name) const override;
    int end_token() const override;

private:
    const CheckpointReader reader_;
    ModelConfig model_;
};

}  // namespace llmc
