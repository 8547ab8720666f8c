#include "llmc/flags/trainer_config.h"

#include <initializer_list>
#include <utility>

#include "llmc/base/error.h"

namespace llmc {
namespace {

// What a flag's word stands for, by a list of all of them.
template <class T>
T meaning(const char* flag, const std::string& word, std::initializer_list<std::pair<const char*, T>> words) {
    std::string known;
    for (const auto& [name, value] : words) {
        if (word == name) return value;
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw Error(ExitCode::bad_flags, strprintf("--%s %s: expected one of %s", flag, word.c_str(), known.c_str()));
}

Fp8Config fp8_config(const Options& o) {
    Fp8Config config;
    config.recipe = fp8_recipe_from_name(o.fp8_recipe);
    config.history = o.fp8_history;
    config.margin = o.fp8_margin;
    config.algorithm = meaning<AmaxAlgorithm>(
        "fp8-amax-algo", o.fp8_amax_algo,
        {{"max", AmaxAlgorithm::max}, {"most_recent", AmaxAlgorithm::most_recent}, {"ema", AmaxAlgorithm::ema}});
    config.pow2_scales = o.fp8_pow2_scales;
    config.e4m3_gradients = meaning<bool>("fp8-grad", o.fp8_grad, {{"e5m2", false}, {"e4m3", true}});
    config.smooth = o.fp8_smooth;
    config.fallback = fp8_fallback_from_text(o.fp8_fallback);
    config.probe = o.fp8_probe_every > 0;
    return config;
}

OptimizerConfig optimizer_config(const Options& o) {
    OptimizerConfig config;
    config.kind = meaning<OptimizerKind>("optimizer", o.optimizer,
                                         {{"adamw", OptimizerKind::adamw},
                                          {"lion", OptimizerKind::lion},
                                          {"sgd", OptimizerKind::sgd},
                                          {"muon", OptimizerKind::muon},
                                          {"normuon", OptimizerKind::normuon}});
    config.adam_moments = meaning<MomentFormat>("adam-moments", o.adam_moments,
                                                {{"fp32", MomentFormat::fp32}, {"bf16", MomentFormat::bf16}});
    config.rounding_seed = o.seed;
    config.clip_kind = meaning<ClipKind>(
        "clip-kind", o.clip_kind, {{"norm", ClipKind::norm}, {"tensor", ClipKind::tensor}, {"value", ClipKind::value}});
    config.lion = {o.beta1, o.beta2, o.weight_decay};
    config.sgd = {o.momentum, o.nesterov == "on", o.weight_decay};
    config.muon.momentum = {o.momentum, o.muon_momentum_warmup};
    config.muon.nesterov = o.nesterov == "on";
    config.muon.newton_schulz = meaning<char>("muon-ns", o.muon_ns, {{"k", 'k'}, {"p", 'p'}, {"q", 'q'}, {"s", 's'}});
    config.muon.scale =
        meaning<MuonScale>("muon-scale", o.muon_scale, {{"rms", MuonScale::rms}, {"spectral", MuonScale::spectral}});
    config.muon.weight_decay = o.weight_decay;
    config.muon.cautious_decay = o.muon_cautious_decay;
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
    config.recompute = meaning<Recompute>(
        "recompute", o.recompute,
        {{"none", Recompute::none}, {"gelu", Recompute::gelu}, {"norm", Recompute::norm}, {"block", Recompute::block}});
    if (o.doc_mask) config.end_token = o.end_token;
    config.document_positions = o.doc_positions;
    config.tf32 = o.tf32;
    if (!o.sequences.stages().empty()) config.shortest_piece = static_cast<int>(o.sequences.stages().front().tokens);
    config.kernels = o.kernel_set;
    config.fast_accumulation = meaning<FastAccumulation>(
        "fp8-fast-accum", o.fp8_fast_accum,
        {{"none", FastAccumulation::none}, {"forward", FastAccumulation::forward}, {"all", FastAccumulation::all}});
    if (meaning<bool>("precision", o.precision, {{"fp32", false}, {"bf16", false}, {"fp8", true}}))
        config.fp8 = fp8_config(o);
    config.fp8_layers = o.fp8_layers;
    config.sharding.stage = o.zero;
    config.sharding.within = o.shard_within;
    config.sharding.wire =
        meaning<Wire>("reduce", o.reduce, {{"fp32", Wire::fp32}, {"bf16", Wire::bf16}, {"fp8", Wire::fp8}});
    const ScheduleKind schedule = meaning<ScheduleKind>("schedule", o.schedule,
                                                        {{"cosine", ScheduleKind::cosine},
                                                         {"linear", ScheduleKind::linear},
                                                         {"constant", ScheduleKind::constant},
                                                         {"wsd", ScheduleKind::wsd},
                                                         {"wsd-linear", ScheduleKind::wsd_linear}});
    config.schedule = {schedule,        o.lr, o.warmup, o.max_steps, o.final_lr_fraction, o.cooldown, o.restart_every,
                       o.restart_factor};
    config.adamw = {o.beta1, o.beta2, o.eps, o.weight_decay};
    config.optimizer = optimizer_config(o);
    if (is_muon(config.optimizer.kind)) config.adamw.weight_decay = o.adamw_weight_decay;
    config.clip = o.clip;
    config.loss = {static_cast<float>(o.z_loss), static_cast<float>(o.label_smoothing)};
    config.loss_scale = loss_scale_config(o.loss_scale);
    config.loss_scale.growth_interval = o.loss_scale_growth_interval;
    config.skip_spikes = o.skip_spikes;
    config.verify_every = o.verify_every;
    return config;
}

ReduceOrder reduce_order(const Options& o) {
    return meaning<ReduceOrder>("reduce-order", o.reduce_order,
                                {{"any", ReduceOrder::any}, {"rank", ReduceOrder::rank}});
}

}  // namespace llmc
