// build: fuzzed
#include "llmc/model/gpt2_config.h"

#include <nlohmann/json.hpp>

#include "llmc/model/model_fields.h"

namespace llmc {
namespace {

// Hugging Face files hold many settings; the ones that would make a different architecture must have GPT-2's value.
void read_hf(const ModelFields& file, ModelConfig& config) {
    const char* const gpt2 = "GPT-2";
    file.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, gpt2);
    file.require("layer_norm_epsilon", {1e-5}, gpt2);
    file.require("tie_word_embeddings", {true}, gpt2);
    file.require("scale_attn_by_inverse_layer_idx", {false}, gpt2);
    config.layers = file.positive({"n_layer", "layers"});
    config.heads = file.positive({"n_head", "heads"});
    config.channels = file.positive({"n_embd", "channels"});
    config.vocab = file.positive({"vocab_size", "vocab"}, 0);
    config.context = file.positive({"n_positions", "n_ctx", "context"}, 0);
    file.require("n_inner", {4 * config.channels}, gpt2);
}

void write_hf(nlohmann::ordered_json& file, const ModelConfig& config) {
    file.update({{"n_layer", config.layers},
                 {"n_head", config.heads},
                 {"n_embd", config.channels},
                 {"n_positions", config.context},
                 {"n_ctx", config.context},
                 {"vocab_size", config.vocab},
                 {"activation_function", "gelu_new"},
                 {"layer_norm_epsilon", 1e-5},
                 {"tie_word_embeddings", true},
                 {"attn_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"resid_pdrop", 0.0}});
}

void set_defaults(ModelConfig&) {}

}  // namespace

constinit const ModelDescription kGpt2Description = {"gpt2", "GPT2LMHeadModel", read_hf, write_hf, set_defaults};

}  // namespace llmc
