// An architecture is what tells one kind of GPT from another: its tensors, its block, and how Hugging Face describes
// it. The registry (architectures.cpp) has one entry each; nothing else names them.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "llmc/device/formats.cuh"
#include "llmc/model/model_table.h"

namespace llmc {

template <class Real>
class Block;
template <class Real>
struct ModelContext;
class ModelFields;

template <class Real>
using MakeBlock = std::unique_ptr<Block<Real>> (*)(ModelContext<Real>& context, int layer);

// What a model's description becomes, and is made of.
struct ModelDescription {
    const char* hf_type;   // "gpt2", of config.json
    const char* hf_class;  // "GPT2LMHeadModel"
    // From config.json; what it asks for and the block does not have is refused.
    void (*read_hf)(const ModelFields& file, ModelConfig& config);
    void (*write_hf)(nlohmann::ordered_json& file, const ModelConfig& config);
    // What a description leaves open; layers, heads and channels are known.
    void (*set_defaults)(ModelConfig& config);
};

struct Architecture {
    const char* name;
    ModelTable (*table)(const ModelConfig&);
    const ModelDescription* description;
    // Floats that a pass of a block needs for partial sums.
    size_t (*scratch)(const ModelConfig&, int B, int T);
    MakeBlock<float> block_fp32;
    MakeBlock<bf16> block_bf16;

    template <class Real>
    MakeBlock<Real> block() const {
        if constexpr (std::is_same_v<Real, float>)
            return block_fp32;
        else
            return block_bf16;
    }
};

template <class Real, template <class> class B>
std::unique_ptr<Block<Real>> make_block(ModelContext<Real>& context, int layer) {
    return std::make_unique<B<Real>>(context, layer);
}

// The entry of a class of blocks.
template <template <class> class B>
constexpr Architecture architecture_of(const char* name, ModelTable (*table)(const ModelConfig&),
                                       const ModelDescription* description) {
    return {name, table, description, B<float>::scratch, make_block<float, B>, make_block<bf16, B>};
}

extern const Architecture kGpt2, kLlama, kQwen3, kNano;

// All of them.
const std::vector<const Architecture*>& architectures();

}  // namespace llmc
