// The shape of a model: its architecture, layers, heads, channels, vocabulary, context, and what follows from them
// (parameters, FLOPs). Shapes come from a table of published GPTs or from a JSON file (model_file.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/kernels/attention.h"
#include "llmc/model/architecture.h"

namespace llmc {

// Rotary positions: pair i of a head turns by position * theta^(-2i / HD). Llama 3.1's scaling stretches wavelengths
// above old_context / low_freq by `factor` (0: none of it), leaves those below old_context / high_freq, and blends
// between.
struct RopeConfig {
    double theta = 10000;
    double factor = 0, low_freq = 1, high_freq = 4;
    int old_context = 8192;
    bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
    std::string name = "custom";
    int layers = 0;    // L
    int heads = 0;     // NH
    int channels = 0;  // C
    int vocab = 0;     // V; 0 in a file that leaves it to the data
    int context = 0;   // longest sequence; 0 in a file that leaves it to -t
    const Architecture* architecture = &kGpt2;

    // Settings that GPT-2 does not have.
    int kv_heads = 0;      // NKV, of keys and values: each is read by NH / NKV heads; 0: NH
    int own_head_dim = 0;  // HD where it is not C / NH; 0: it is
    int hidden = 0;        // F, channels inside the MLP; 0: 4C
    bool tied = true;      // the head is the embedding
    double norm_eps = 1e-5;
    RopeConfig rope = {};
    double logit_cap = 0;  // logits are cap * tanh(logits / cap); 0: as they are
    int window = 0;        // keys that a query sees in short layers, its own and those before it; 0: no layer is short
    std::string window_layers = {};  // S (short) or L (long: all keys) per layer, repeated over the layers; empty: S

    ModelTable table() const { return architecture->table(*this); }

    int padded_vocab() const;  // Vp: V rounded up to 128; the extra rows are never predicted
    int head_dim() const;      // HD
    int key_value_heads() const { return kv_heads > 0 ? kv_heads : heads; }
    int mlp_channels() const { return hidden > 0 ? hidden : 4 * channels; }
    int attention_channels() const { return heads * head_dim(); }                      // C where HD is C / NH
    int qkv_channels() const { return (heads + 2 * key_value_heads()) * head_dim(); }  // 3C where NKV is NH, too
    // 0: all keys
    int window_of(int layer) const {
        const std::string& letters = window_layers;
        return letters.empty() || letters[static_cast<size_t>(layer) % letters.size()] == 'S' ? window : 0;
    }
    AttentionHeads attention_heads(int layer, Kernels kernels = Kernels::automatic) const {
        return {heads, key_value_heads(), head_dim(), window_of(layer), kernels};
    }
    int short_layers() const;  // how many have the window

    // Elements of all tensors with V rows in embedding and head, as exported; padded_parameters() counts Vp rows, as
    // trained.
    int64_t parameters() const;
    int64_t padded_parameters() const {
        return parameters() + int64_t{padded_vocab() - vocab} * channels * (tied ? 1 : 2);
    }

    // Elements that take part in matrix products: the blocks' matrices and the head. A tied head is the embedding, used
    // once as a matrix (as a lookup table it costs nothing).
    int64_t matrix_parameters() const { return layers * table().block_matrix_parameters() + int64_t{vocab} * channels; }

    // Useful FLOPs to train on one token in sequences of T: 6 a matrix parameter (2 forward, 4 backward), and
    // 6*L*NH*HD*T for attention. Its two forward products cost 4*NH*HD*T a layer on the full square; a causal mask
    // needs half of it, a window of W the part W/T (2 - W/T) of that, and the backward twice as much again.
    // Recomputation and the padded vocabulary are not useful work and not counted.
    double flops_per_token(int T) const {
        return 6.0 * static_cast<double>(matrix_parameters()) + attention_flops_per_token(T);
    }
    double attention_flops_per_token(int T) const;  // FLOPs of attention alone

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
