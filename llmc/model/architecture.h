// An architecture is what tells one kind of GPT from another: its tensors, and its block. The registry has one entry
// each; nothing else names them.
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

template <class Real>
using MakeBlock = std::unique_ptr<Block<Real>> (*)(ModelContext<Real>& context, int layer);

struct Architecture {
    const char* name;
    ModelTable (*table)(const ModelConfig&);
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
constexpr Architecture architecture_of(const char* name, ModelTable (*table)(const ModelConfig&)) {
    return {name, table, B<float>::scratch, make_block<float, B>, make_block<bf16, B>};
}

extern const Architecture kGpt2;

}  // namespace llmc
