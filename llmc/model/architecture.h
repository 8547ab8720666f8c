// An architecture is a kind of GPT: its tensors, its block, and how Hugging Face describes it. Each file of an
// architecture defines its entries, and kArchitectures lists them. Nothing else names them.
#pragma once
#include <memory>
#include <type_traits>

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

// Conversions between a ModelConfig and Hugging Face's config.json.
struct ModelDescription {
    const char* hf_type;   // "gpt2", of config.json
    const char* hf_class;  // "GPT2LMHeadModel"
    // The fields of config.json, read or written. Reading throws for settings that the block does not support.
    void (*fields)(const ModelFields& file, ModelConfig& config);
    // Fills in the fields that a description leaves open. Layers, heads and channels are set.
    void (*set_defaults)(ModelConfig& config);
};
extern const ModelDescription kGpt2Description, kLlamaDescription, kQwen3Description, kNanoDescription;

struct Architecture {
    const char* name;
    ModelTable (*table)(const ModelConfig&);
    const ModelDescription* description;
    // Number of floats that a pass of a block needs for partial sums.
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

// The entry of the block class B.
template <template <class> class B>
constexpr Architecture architecture_of(const char* name, ModelTable (*table)(const ModelConfig&),
                                       const ModelDescription* description) {
    return {name, table, description, B<float>::scratch, make_block<float, B>, make_block<bf16, B>};
}

extern const Architecture kGpt2, kLlama, kQwen3, kNano;
constexpr const Architecture* kArchitectures[] = {&kGpt2, &kLlama, &kQwen3, &kNano};

}  // namespace llmc
