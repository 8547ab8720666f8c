// The list of checks of what a run uses (kernel_checks.h).
#include "test/kernels/specifications/kernel_checks.h"

#include <algorithm>

#include "llmc/train/trainer.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc {

namespace {

constexpr void (*kFamilies[])(check::Items&, const KernelUse&) = {
    check::add_hardware,    check::add_embedding,  check::add_norms,    check::add_rope,           check::add_attention,
    check::add_activations, check::add_classifier, check::add_sums,     check::add_clipping,       check::add_optimizer,
    check::add_muon,        check::add_step,       check::add_quantize, check::add_quantize_blocks};

bool has(const std::vector<TensorRow>& rows, const std::string& name) {
    return std::any_of(rows.begin(), rows.end(), [&](const TensorRow& row) { return row.name == name; });
}

}  // namespace

std::vector<CheckItem> kernel_checks(const KernelUse& use) {
    check::Items items;
    for (const auto add : kFamilies) add(items, use);
    return items;
}

KernelUse::KernelUse(const TrainerConfig& config, int ranks) {
    bf16 = config.precision != Precision::fp32;
    fp8 = config.is_fp8();
    scaling = config.fp8_scaling();
    e4m3_gradients = fp8 && config.fp8.grad == Fp8Grad::e4m3;
    fp8_head =
        fp8 && fp8_layers(config.fp8_layers, config.model.layers, linear_names(config.model), config.fp8_scaling())
                   .contains(kHeadLayer);
    current_scaling = fp8 && config.fp8.recipe == Fp8Recipe::current;
    hopper = bf16 && config.kernels == Kernels::automatic && is_hopper();
    several_ranks = ranks > 1;
    fp8_wire = several_ranks && config.sharding.wire == Wire::fp8;
    optimizer = config.optimizer;
    adamw = config.optimizer.adamw();
    gradients = config.sharding.gradients;
    signals = config.signals_every > 0;
    qk_clip = config.qk_clip > 0;
    max_logits = (signals || qk_clip) && config.model.table().attention;
    documents = config.doc_mask;
    z_loss = static_cast<float>(config.z_loss);
    set_model(config.model);
}

void KernelUse::set_model(const ModelConfig& model) {
    channels = model.channels;
    heads = model.heads;
    kv_heads = model.key_value_heads();
    head_dim = model.head_dim();
    window = model.short_layers() > 0 ? model.window : 0;
    hidden = model.mlp_channels();
    vocab = model.vocab;
    padded_vocab = model.padded_vocab();
    logit_cap = static_cast<float>(model.logit_cap);

    // A norm, a linear layer and the model itself look for tensors by these names, too.
    const ModelTable table = model.table();
    layer_norm = rms_norm = rms_norm_without_gains = false;
    const auto add_norm = [&](const std::vector<TensorRow>& rows, const std::string& name) {
        const bool shifted = has(rows, name + ".bias"), weighted = has(rows, name + ".weight");
        (shifted ? layer_norm : weighted ? rms_norm : rms_norm_without_gains) = true;
    };
    add_norm(table.block, "ln1");
    add_norm(table.block, "ln2");
    add_norm(table.final, "lnf");
    if (table.embedding_norm) add_norm(table.embedding, "embedding_norm");
    biases = false;
    for (const std::string& name : linear_names(model)) biases |= has(table.block, name + ".bias");
    position_embedding = has(table.embedding, "wpe");
    qk_norm = table.qk_norm;
    qk_gains = has(table.block, "q_norm.weight");
    activation = table.activation;
}

}  // namespace llmc
