// The weights of a training checkpoint, for --init-from and export: its FP32 masters.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/checkpoint/checkpoint_reader.h"
#include "llmc/checkpoint/weight_source.h"

namespace llmc {

// The checkpoint that a path names: itself, or the newest complete one of a run that has not ended with a
// model.safetensors of its weights; "" where it names none.
std::string checkpoint_at(const std::string& path);

class CheckpointWeights : public WeightSource {
public:
    // Every byte is checked first. The second form refuses another model.
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
