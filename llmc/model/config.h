// The shape of a model: layers, heads, channels, vocabulary, context, and what follows from them (parameters, FLOPs).
// Shapes come from a table of published GPTs or from a JSON file, Hugging Face's config.json included.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/model/architecture.h"

namespace llmc {

struct ModelConfig {
    std::string name = "custom";
    int layers = 0;    // L
    int heads = 0;     // NH
    int channels = 0;  // C
    int vocab = 0;     // V; 0 in a file that leaves it to the data
    int context = 0;   // longest sequence; 0 in a file that leaves it to -t
    const Architecture* architecture = &kGpt2;

    ModelTable table() const { return architecture->table(*this); }
    int padded_vocab() const;  // Vp: V rounded up to 128; the extra rows are never predicted
    int head_dim() const;      // C / NH

    // Elements of all tensors with V rows in the embedding, as exported; padded_parameters() counts Vp rows, as
    // trained.
    int64_t parameters() const;
    int64_t padded_parameters() const;

    // Elements that take part in matrix products: the blocks' matrices and the head. The head is the embedding, used
    // once as a matrix (as a lookup table it costs nothing).
    int64_t matrix_parameters() const;

    // Useful FLOPs to train on one token in sequences of T: 6 a matrix parameter (2 forward, 4 backward), and 6*L*C*T
    // for attention. Its two forward products cost 4*C*T a layer on the full square; a causal mask needs half of it,
    // and the backward twice as much again. Recomputation and the padded vocabulary are not useful work and not
    // counted.
    double flops_per_token(int T) const;
    double attention_flops_per_token(int T) const;  // of them

    // Throws Error(bad_flags) when the kernels cannot train this shape.
    void validate() const;

    bool operator==(const ModelConfig&) const = default;
};

std::vector<std::string> model_names();
bool is_model_name(const std::string& name);

// A name of the table, a JSON file, or a directory that holds config.json. Not validated yet: flags may still change
// it.
ModelConfig find_model(const std::string& name_or_file);

}  // namespace llmc
