// GPT-2's parameters: the units and tensors of its parameter table, and their initial values.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/model/config.h"
#include "llmc/shard/table.h"

namespace llmc {

// Units: 0 the embedding, 1 to L the blocks, L + 1 the final norm (the head is the embedding).
inline size_t embedding_unit() { return 0; }
inline size_t block_unit(int layer) { return static_cast<size_t>(layer) + 1; }
inline size_t final_unit(const ModelConfig& config) { return static_cast<size_t>(config.layers) + 1; }

// Tensors of a unit, in the order of the table: those with weight decay first.
struct EmbeddingTensor {
    enum : size_t { wte, wpe };  // (Vp, C), (context, C)
};
struct BlockTensor {
    enum : size_t {
        qkv_weight,        // (3C, C)
        attn_proj_weight,  // (C, C)
        fc_weight,         // (4C, C)
        fc_proj_weight,    // (C, 4C)
        ln1_weight,        // (C)
        ln1_bias,          // (C)
        qkv_bias,          // (3C)
        attn_proj_bias,    // (C)
        ln2_weight,        // (C)
        ln2_bias,          // (C)
        fc_bias,           // (4C)
        fc_proj_bias,      // (C)
    };
};
struct FinalTensor {
    enum : size_t { weight, bias };  // (C), (C)
};

std::vector<Unit> gpt2_units(const ModelConfig& config);

// The tensor's values at step 0, as published for GPT-2: matrices N(0, 0.02), those that write to the residual stream
// N(0, 0.02 / sqrt(2L)), norm weights 1, biases 0. Padded rows of wte are 0. A function of (seed, name, element) alone,
// computed on the host, so that every device and every sharding starts from the same bits.
std::vector<float> initial_values(const ModelConfig& config, const ParameterTensor& tensor, uint64_t seed);

}  // namespace llmc
