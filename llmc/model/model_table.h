// Every tensor of a model in one table: its name here and in Hugging Face's files, its shape, and how it starts. What
// else one needs to know of an architecture's parameters follows from it: units, weight decay, linear layers, FLOPs,
// what is imported and exported, and the planner's numbers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/shard/table.h"

namespace llmc {

struct ModelConfig;

enum class Init {
    zeros,
    ones,
    normal,    // N(0, 0.02)
    residual,  // N(0, 0.02 / sqrt(2L)): of layers whose output is added to the residual stream
};

struct TensorRow {
    std::string name;     // "qkv.weight"; in a block's unit it becomes "h.3.qkv.weight"
    std::string hf_name;  // "attn.c_attn.weight"; in a block "h.3.attn.c_attn.weight"
    int rows, columns;    // (OC, C) of a linear layer's weight; columns 0: a vector
    Init init;
    int padded_rows = 0;  // of the tensor in memory, where it has more: they are 0
    int block = -1;       // of a block, in all_tensors()

    bool is_matrix() const { return columns > 0; }
    int64_t count() const { return int64_t{rows} * (is_matrix() ? columns : 1); }
};

// In the order of the model's forward pass, which is that of Hugging Face's files.
struct ModelTable {
    std::vector<TensorRow> embedding, block, final;  // wte first: it is the head too
    bool attention = true;                           // blocks have causal attention over all channels
    bool hf_transposed = true;                       // Hugging Face stores blocks' matrices as (C, OC)

    int64_t block_parameters() const;
    int64_t block_matrix_parameters() const;
};

// ---- what follows from a config's table ----

// Units: 0 the embedding, 1 to L the blocks, L + 1 the final norm (the head is the embedding).
inline size_t embedding_unit() { return 0; }
inline size_t block_unit(int layer) { return static_cast<size_t>(layer) + 1; }
size_t final_unit(const ModelConfig& config);
std::vector<Unit> parameter_units(const ModelConfig& config);
std::string block_prefix(int layer);  // "h.3.", of the names of a block's tensors and layers

// Names of a block's linear layers, without "h.3.".
std::vector<std::string> linear_names(const ModelConfig& config);

// All tensors with their whole names (hf_name too), in the table's order.
std::vector<TensorRow> all_tensors(const ModelConfig& config);

// The tensor's values at step 0, with padding. A function of (seed, name, element) alone, computed on the host, so that
// every device and every sharding starts from the same bits.
std::vector<float> initial_values(const ModelConfig& config, const TensorRow& row, uint64_t seed);

}  // namespace llmc
