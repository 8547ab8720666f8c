// From resolved options to the configuration of a Trainer.
#include "llmc/flags/options.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

Fp8Config fp8_config(const Options& o) {
    Fp8Config config;
    config.recipe = o.fp8_recipe;
    config.history = o.fp8_history;
    config.margin = o.fp8_margin;
    config.algorithm = o.fp8_amax_algo;
    config.pow2_scales = o.fp8_pow2_scales;
    config.grad = o.fp8_grad;
    config.fallback = o.fp8_fallback.value;
    config.until = o.fp8_until.value.step(o.max_steps);
    return config;
}

OptimizerConfig optimizer_config(const Options& o) {
    OptimizerConfig config;
    config.kind = o.optimizer;
    config.masters = o.master;
    config.adam_moments = o.adam_moments;
    config.average_decay = o.average.value;
    config.rounding_seed = o.seed;
    config.clip_kind = o.clip_kind;
    config.lion = {o.beta1, o.beta2, o.weight_decay};
    config.sgd = {o.momentum, o.nesterov == Nesterov::on, o.weight_decay};
    config.muon.momentum = {o.momentum, o.muon_momentum_warmup};
    config.muon.nesterov = o.nesterov == Nesterov::on;
    config.muon.newton_schulz = static_cast<char>(o.muon_ns);
    config.muon.scale = o.muon_scale;
    config.muon.weight_decay = o.weight_decay;
    config.muon.cautious_decay = o.cautious_decay;
    const auto factor = [&](double rate) { return rate > 0 ? rate / o.lr : 1.0; };
    config.muon.embedding_rate = factor(o.embedding_lr);
    config.muon.head_rate = factor(o.head_lr);
    config.muon.vector_rate = factor(o.vector_lr);
    return config;
}

}  // namespace

TrainerConfig trainer_config(const Options& o, const ProductChoices& products) {
    TrainerConfig config;
    config.products = products;
    config.model = o.model_config;
    config.batch = o.batch;
    config.seq = o.seq;
    config.micro_steps = o.micro_steps;
    config.recompute = o.recompute == Recompute::automatic ? Recompute::none : o.recompute;
    if (o.doc_mask) config.end_token = o.end_token;
    config.tf32 = o.tf32;
    if (!o.sequences.stages().empty()) config.shortest_piece = static_cast<int>(o.sequences.stages().front().tokens);
    config.kernels = o.kernel_set;
    config.fast_accumulation = o.fp8_fast_accum;
    if (o.precision == Precision::fp8) config.fp8 = fp8_config(o);
    config.fp8_layers = o.fp8_layers.value;
    config.sharding.stage = o.zero;
    config.sharding.within = o.shard_within;
    config.sharding.wire = o.reduce;
    config.sharding.gradients = o.gradients;
    config.sharding.offload_state = offloads_optimizer(o.offload);
    config.offload_residuals = offloads_residuals(o.offload);
    config.schedule = {o.schedule,          o.lr,       o.warmup,        o.max_steps,
                       o.final_lr_fraction, o.cooldown, o.restart_every, o.restart_factor};
    config.schedule.decay_from = o.decay_from;
    config.optimizer = optimizer_config(o);
    const bool muon = is_muon(o.optimizer);  // with plain AdamW for the rest
    config.adamw = {o.beta1, o.beta2, o.eps, muon ? o.adamw_weight_decay : o.weight_decay};
    config.adamw.cautious_decay = !muon && o.cautious_decay;
    config.adamw.nesterov = !muon && o.nesterov == Nesterov::on;
    config.clip = o.clip;
    config.z_loss = static_cast<float>(o.z_loss);
    config.loss_scale = o.loss_scale.value;
    config.loss_scale.growth_interval = o.loss_scale_growth_interval;
    config.skip_spikes = o.skip_spikes;
    config.qk_clip = o.qk_clip;
    config.signals_every = o.signals_every;
    config.verify_every = o.verify_every;
    return config;
}

}  // namespace llmc
