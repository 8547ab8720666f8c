// An architecture is a kind of GPT: its tensors, its block, and how Hugging Face describes it. The files of the blocks
// define the entries, model_file.cpp defines their descriptions, and kArchitectures lists them.
//
// Its tensors are in one table: name here and in Hugging Face's files, shape, and initial values. Everything else about
// an architecture's parameters follows from it: units, weight decay, linear layers, FLOPs, import and export, and the
// planner's numbers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "llmc/device/formats.cuh"
#include "llmc/fp8/recipe.h"
#include "llmc/kernels/activation.h"
#include "llmc/shard/layout.h"

namespace llmc {

struct ModelConfig;
struct InitialValues;

enum class Init {
    zeros,
    ones,
    normal,    // N(0, 0.02)
    residual,  // N(0, 0.02 / sqrt(2L)), for layers whose output is added to the residual stream
    unit,      // N(0, 1)
    fan_in,    // N(0, sqrt(0.33 / columns))
    small,     // N(0, 0.001)
};

// Rows of one of our tensors that are a separate tensor in Hugging Face's files.
struct HfPart {
    std::string name;
    int rows;
    int swapped_halves = 0;  // their files swap the halves of every group of this many rows (RoPE direction); 0: no
};

struct TensorRow {
    std::string name;     // "qkv.weight"; in a block's unit it becomes "h.3.qkv.weight"
    std::string hf_name;  // "transformer.wte.weight"; in a block "attn.c_attn.weight", after ModelTable::hf_blocks
    int rows, columns;    // (OC, C) of a linear layer's weight; columns 0: a vector
    Init init;
    int padded_rows = 0;                // rows in memory, if there are more; they are 0
    std::vector<HfPart> hf_parts = {};  // used instead of hf_name unless empty
    int block = -1;                     // the tensor's block, in all_tensors()
    std::vector<int> matrix_rows = {};  // see matrices()

    bool is_matrix() const { return columns > 0; }
    // Name of the linear layer whose weight this is, such as "h.3.fc" for "h.3.fc.weight"; otherwise "".
    std::string layer() const;
    // Rows of each matrix, for a tensor of several matrices below each other: matrix_rows, or else hf_parts. Empty for
    // a single matrix.
    std::vector<int> matrices() const;
    int64_t count() const { return int64_t{rows} * (is_matrix() ? columns : 1); }
    int64_t padded_count() const { return int64_t{std::max(rows, padded_rows)} * (is_matrix() ? columns : 1); }
};

// Tensors are in the order of the model's forward pass, which is also that of Hugging Face's files.
struct ModelTable {
    std::vector<TensorRow> embedding, block, final;  // wte first: it is the head too, unless `final` has lm_head.weight
    std::string hf_blocks = "transformer.h.";        // prefix of a block's number
    bool attention = true;                           // blocks have causal attention
    bool hf_transposed = true;                       // Hugging Face stores blocks' matrices as (C, OC)
    bool embedding_norm = false;                     // the stream starts as the RMS norm of the embedding
    bool qk_norm = false;                            // queries and keys pass an RMS norm before RoPE
    Activation activation = Activation::gelu;

    int64_t block_matrix_parameters() const;
};

// ---- derived from a config's table ----------------------------------------------------------------------------------

// Units: 0 is the embedding, 1 to L are the blocks, L + 1 is the final norm, with the head if it is not the embedding.
inline size_t embedding_unit() { return 0; }
inline size_t block_unit(int layer) { return static_cast<size_t>(layer) + 1; }
size_t final_unit(const ModelConfig& config);
std::vector<Unit> parameter_units(const ModelConfig& config);
// Decides which weights have FP8 codes, from masters or the working copy (ParameterTensor::codes). The head's come from
// the working copy, because it may share its weight with the embedding, which reads that copy. With `from_copies` all
// codes do. Weights whose codes come from masters have a working copy only if their layers may leave FP8.
void choose_fp8_weights(std::vector<Unit>& units, const Fp8Layers& layers, bool from_copies, bool may_leave);
std::string block_prefix(int layer);  // "h.3.", with which names of a block's tensors and layers start

// Names of a block's linear layers, without "h.3.".
std::vector<std::string> linear_names(const ModelConfig& config);

// All tensors with their full names, also in Hugging Face's files, in the table's order.
std::vector<TensorRow> all_tensors(const ModelConfig& config);

// The standard deviation of a tensor's initial values.
double initial_deviation(const ModelConfig& config, const TensorRow& row);

// The tensor's values at step 0. They depend only on seed, name and element.
InitialValues initial_values(const ModelConfig& config, const TensorRow& row, uint64_t seed);

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
extern const ModelDescription kGpt2Description, kLlamaDescription, kMistralDescription, kQwen2Description,
    kQwen3Description, kNanoDescription;

struct Architecture {
    const char* name;
    ModelTable (*table)(const ModelConfig&);
    const ModelDescription* description;
    // Number of floats that a pass of a block needs for partial sums.
    size_t (*scratch)(const ModelConfig&, int B, int T);
    std::tuple<MakeBlock<float>, MakeBlock<bf16>> make_block;
};

template <class Real, template <class> class B>
std::unique_ptr<Block<Real>> make_block(ModelContext<Real>& context, int layer) {
    return std::make_unique<B<Real>>(context, layer);
}

// The entry of the block class B.
template <template <class> class B>
constexpr Architecture architecture_of(const char* name, ModelTable (*table)(const ModelConfig&),
                                       const ModelDescription* description) {
    return {name, table, description, B<float>::scratch, {make_block<float, B>, make_block<bf16, B>}};
}

extern const Architecture kGpt2, kLlama, kMistral, kQwen2, kQwen3, kNano;
constexpr const Architecture* kArchitectures[] = {&kGpt2, &kLlama, &kMistral, &kQwen2, &kQwen3, &kNano};

}  // namespace llmc
