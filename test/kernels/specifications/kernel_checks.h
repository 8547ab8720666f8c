// The checks of everything but products: casts, tensor cores, and the kernels that a run uses, each against its plain
// counterpart, at the run's head dimension and width and at odd lengths, twice with the same bits.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "llmc/device/runtime.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/linear/matmul.h"
#include "llmc/model/config.h"
#include "llmc/optim/config.h"
#include "llmc/train/config.h"

namespace llmc {

struct TrainerConfig;

struct CheckItem {
    // Names the kernel and everything its result depends on: "layernorm_forward bf16 N=149 C=768".
    std::string name;
    std::string family;  // "casts", "memory", "tensor cores", "kernels": a line of the table
    // Returns the first problem with place, found and expected numbers, "" if there is none. May throw device errors.
    std::function<std::string(stream_t)> run;
};

// Which kernels a run uses, and at which sizes.
struct KernelUse {
    bool bf16 = true;  // activations; else float
    bool fp8 = false;  // in some linear layers
    Fp8Scaling scaling = Fp8Scaling::tensor;
    bool e4m3_gradients = false;
    bool fp8_head = false;         // the head's gradient is in FP8
    bool current_scaling = false;  // producers measure the amax first, then write
    bool hopper = false;           // Hopper's kernels, too
    bool several_ranks = false;
    bool fp8_wire = false;  // --reduce fp8
    OptimizerConfig optimizer;
    AdamWConfig adamw;
    StateFormat gradients = StateFormat::fp32;
    bool signals = false;     // --signals-every
    bool qk_clip = false;     // --qk-clip
    bool max_logits = false;  // attention's largest logits are measured
    bool documents = false;   // attention stays inside documents
    float z_loss = 0;

    // The model. The defaults are GPT-2's.
    int channels = 0, heads = 0, kv_heads = 0, head_dim = 0;
    int window = 0;  // keys of attention in the short layers; 0: there are none
    int hidden = 0;  // channels inside the MLP, after the activation
    int vocab = 0, padded_vocab = 0;
    bool layer_norm = true, rms_norm = false, rms_norm_without_gains = false;
    bool biases = true;              // linear layers have biases
    bool position_embedding = true;  // else positions are rotary
    bool qk_norm = false, qk_gains = false;
    Activation activation = Activation::gelu;
    float logit_cap = 0;  // 0: none

    KernelUse() = default;
    // The kernels of a run with this configuration and number of ranks.
    KernelUse(const TrainerConfig& config, int ranks);
    // Sets the model's fields, from its shape and from the table of its tensors.
    void set_model(const ModelConfig& model);

    AttentionHeads attention_heads() const { return {heads, kv_heads, head_dim}; }
    int fc_channels() const { return is_gated(activation) ? 2 * hidden : hidden; }
};

std::vector<CheckItem> kernel_checks(const KernelUse& use);

}  // namespace llmc
