#include "llmc/run/trainer_config.h"

namespace llmc {
namespace {

Fp8Config fp8_config(const Options& o) {
    Fp8Config config;
    config.recipe = fp8_recipe_from_name(o.fp8_recipe);
    config.history = o.fp8_history;
    config.margin = o.fp8_margin;
    config.algorithm = o.fp8_amax_algo == "most_recent" ? AmaxAlgorithm::most_recent
                       : o.fp8_amax_algo == "ema"       ? AmaxAlgorithm::ema
                                                        : AmaxAlgorithm::max;
    config.pow2_scales = o.fp8_pow2_scales;
    config.e4m3_gradients = o.fp8_grad == "e4m3";
    config.fallback = fp8_fallback_from_text(o.fp8_fallback);
    return config;
}

}  // namespace

TrainerConfig trainer_config(const Options& o) {
    TrainerConfig config;
    config.model = o.model_config;
    config.batch = o.batch;
    config.seq = o.seq;
    config.micro_steps = o.micro_steps;
    config.recompute = recompute_from_name(o.recompute);
    config.tf32 = o.tf32;
    config.fast_accumulation = fast_accumulation(o.fp8_fast_accum);
    if (o.precision == "fp8") config.fp8 = fp8_config(o);
    config.fp8_layers = o.fp8_layers;
    config.sharding.stage = o.zero;
    config.sharding.within = o.shard_within;
    config.sharding.wire = o.reduce == "bf16" ? Wire::bf16 : Wire::fp32;
    config.schedule = {schedule_kind(o.schedule), o.lr, o.warmup, o.max_steps, o.final_lr_fraction};
    config.adamw = {o.beta1, o.beta2, o.eps, o.weight_decay};
    config.clip = o.clip;
    config.loss_scale = loss_scale_config(o.loss_scale);
    config.loss_scale.growth_interval = o.loss_scale_growth_interval;
    config.skip_spikes = o.skip_spikes;
    return config;
}

ReduceOrder reduce_order(const Options& o) { return o.reduce_order == "rank" ? ReduceOrder::rank : ReduceOrder::any; }

}  // namespace llmc
