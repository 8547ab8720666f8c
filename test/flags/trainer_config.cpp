// From flags to a TrainerConfig: every word has the right meaning, and every number arrives in its own place.
#include "llmc/train/trainer.h"

#include <doctest/doctest.h>

#include <set>

#include "llmc/flags/flags.h"

using namespace llmc;

namespace {

// Some words need the CPU.
void resolve_on_cpu(Options& o) {
    ResolveInputs inputs;
    inputs.host_device = true;
    resolve(o, inputs);
}

// An FP8 run with one flag changed, and an optimizer that uses it.
Options options_with(const std::string& flag, const std::string& word) {
    Options o;
    o.precision = Precision::fp8;
    if (flag.starts_with("muon-")) o.optimizer = OptimizerKind::muon;
    find_flag(flag)->set(o, word);
    return o;
}

TrainerConfig with(const char* flag, const char* word) {
    Options o = options_with(flag, word);
    resolve_on_cpu(o);
    return trainer_config(o);
}

}  // namespace

TEST_CASE("trainer config: every word of a flag is a value of its own") {
    int words = 0;
    for (const Flag& flag : all_flags()) {
        std::set<std::string> seen;
        for (const std::string& word : flag.words) {
            CAPTURE(flag.long_name);
            CAPTURE(word);
            Options o = options_with(flag.long_name, word);
            CHECK(flag_text(flag, o) == word);  // no other word has this value
            CHECK(seen.insert(word).second);
            resolve_on_cpu(o);
            CHECK_NOTHROW(trainer_config(o));
            words++;
        }
    }
    CHECK(words > 30);
}

TEST_CASE("trainer config: words arrive in their own places") {
    CHECK(with("precision", "fp8").fp8);
    CHECK(!with("precision", "bf16").fp8);
    CHECK(with("recompute", "auto").recompute == Recompute::none);  // until a plan has chosen
    CHECK(with("recompute", "norm").recompute == Recompute::norm);
    CHECK(with("offload", "optimizer").sharding.offload_state);
    CHECK(with("offload", "residuals").offload_residuals);
    CHECK(with("schedule", "linear").schedule.kind == ScheduleKind::linear);
    CHECK(with("fp8-recipe", "current").fp8->recipe == Fp8Recipe::current);
    CHECK(with("fp8-grad", "e4m3").fp8->grad == Fp8Grad::e4m3);
    CHECK(with("fp8-amax-algo", "ema").fp8->algorithm == AmaxAlgorithm::ema);
    CHECK(with("fp8-fast-accum", "all").fast_accumulation == FastAccumulation::all);
    CHECK(with("optimizer", "lion").optimizer.kind == OptimizerKind::lion);
    CHECK(with("master", "bf16").optimizer.masters == StateFormat::bf16);
    CHECK(with("gradients", "bf16").sharding.gradients == StateFormat::bf16);
    CHECK(with("adam-moments", "fp8").optimizer.adam_moments == StateFormat::fp8);
    CHECK(with("muon-scale", "spectral").optimizer.muon.scale == MuonScale::spectral);
    for (const char* set : {"k", "p"}) CHECK(with("muon-ns", set).optimizer.muon.newton_schulz == *set);
    CHECK(with("clip-kind", "tensor").optimizer.clip_kind == ClipKind::tensor);
    CHECK(with("reduce", "bf16").sharding.wire == Wire::bf16);
}

TEST_CASE("trainer config: numbers and switches arrive in their own places") {
    Options o;
    o.precision = Precision::fp8;
    o.batch = 2, o.seq = 64, o.total_batch = 384, o.max_steps = 100;
    o.lr = 1e-3, o.warmup = 5, o.final_lr_fraction = 0.25;
    o.beta1 = 0.5, o.beta2 = 0.75, o.eps = 1e-6, o.weight_decay = 0.2, o.clip = 3;
    o.z_loss = 1e-4;
    find_flag("fp8-layers")->set(o, "all,-first");
    o.fp8_history = 7, o.fp8_margin = 2;
    find_flag("fp8-fallback")->set(o, "0.25,0.5,3");
    find_flag("fp8-until")->set(o, "94.5%");
    find_flag("loss-scale")->set(o, "256");
    o.loss_scale_growth_interval = 11, o.shard_within = 4;
    find_flag("kernels")->set(o, "gelu_fp8");
    resolve(o, {});
    o.zero = 2;  // as with several ranks
    const TrainerConfig c = trainer_config(o);
    CHECK(c.model == o.model_config);
    CHECK(c.batch == 2);
    CHECK(c.seq == 64);
    CHECK(c.micro_steps == 3);
    CHECK(c.schedule.lr == 1e-3);
    CHECK(c.schedule.warmup == 5);
    CHECK(c.schedule.steps == 100);
    CHECK(c.schedule.final_fraction == 0.25);
    CHECK(c.adamw.beta1 == 0.5);
    CHECK(c.adamw.beta2 == 0.75);
    CHECK(c.adamw.eps == 1e-6);
    CHECK(c.adamw.weight_decay == 0.2);
    CHECK(c.clip == 3);
    CHECK(c.z_loss == 1e-4f);
    CHECK(c.fp8_layers == Fp8LayerTerms{{"all"}, {"first", false}});
    CHECK(c.fp8->history == 7);
    CHECK(c.fp8->margin == 2);
    CHECK(c.fp8->fallback.saturated == 0.25f);
    CHECK(c.fp8->fallback.underflowed == 0.5f);
    CHECK(c.fp8->fallback.steps == 3);
    CHECK(c.fp8->until == 94);
    CHECK(!c.loss_scale.dynamic);
    CHECK(c.loss_scale.initial == 256);
    CHECK(c.loss_scale.growth_interval == 11);
    CHECK(c.sharding.stage == 2);
    CHECK(c.sharding.within == 4);
    CHECK(c.kernels.names() == std::vector<std::string>{"gelu_fp8"});

    CHECK(c.optimizer.kind == OptimizerKind::adamw);
    o.optimizer = OptimizerKind::lion, o.momentum = 0.625, o.nesterov = Nesterov::on;
    const OptimizerConfig optimizer = trainer_config(o).optimizer;
    CHECK(optimizer.kind == OptimizerKind::lion);
    CHECK(optimizer.lion.beta1 == 0.5);
    CHECK(optimizer.lion.beta2 == 0.75);
    CHECK(optimizer.lion.weight_decay == 0.2);
    CHECK(optimizer.sgd.momentum == 0.625);
    CHECK(optimizer.sgd.nesterov);
    CHECK(optimizer.sgd.weight_decay == 0.2);
    Options muon;
    muon.optimizer = OptimizerKind::normuon, muon.lr = 2e-3, muon.weight_decay = 0.3;
    muon.muon_ns = MuonSteps::p, muon.muon_scale = MuonScale::spectral;
    muon.muon_momentum_warmup = 300, muon.cautious_decay = true;
    muon.adamw_lr = 1e-3, muon.embedding_lr = 4e-3, muon.vector_lr = 6e-3, muon.adamw_weight_decay = 0.01;
    resolve(muon, {});
    const TrainerConfig with_muon = trainer_config(muon);
    CHECK(with_muon.optimizer.kind == OptimizerKind::normuon);
    CHECK(with_muon.optimizer.muon.momentum.momentum == 0.95);
    CHECK(with_muon.optimizer.muon.momentum.warmup == 300);
    CHECK(with_muon.optimizer.muon.cautious_decay);
    CHECK(with_muon.optimizer.muon.nesterov);
    CHECK(with_muon.optimizer.muon.newton_schulz == 'p');
    CHECK(with_muon.optimizer.muon.scale == MuonScale::spectral);
    CHECK(with_muon.optimizer.muon.weight_decay == 0.3);
    CHECK(with_muon.optimizer.muon.embedding_rate == doctest::Approx(2));
    CHECK(with_muon.optimizer.muon.head_rate == doctest::Approx(0.5));
    CHECK(with_muon.optimizer.muon.vector_rate == doctest::Approx(3));
    CHECK(with_muon.adamw.weight_decay == 0.01);
    CHECK(!with_muon.adamw.cautious_decay);
    CHECK(!with_muon.adamw.nesterov);
    Options adamw;
    adamw.cautious_decay = true, adamw.nesterov = Nesterov::on, adamw.seed = 77;
    resolve(adamw, {});
    CHECK(trainer_config(adamw).adamw.cautious_decay);
    CHECK(trainer_config(adamw).adamw.nesterov);
    CHECK(trainer_config(adamw).optimizer.rounding_seed == 77);

    // One switch at a time, so that none can be mistaken for another.
    for (const auto on : {&Options::tf32, &Options::fp8_pow2_scales, &Options::skip_spikes}) {
        Options one = o;
        one.*on = true;
        const TrainerConfig config = trainer_config(one);
        CHECK(config.tf32 == one.tf32);
        CHECK(config.fp8->pow2_scales == one.fp8_pow2_scales);
        CHECK(config.skip_spikes == one.skip_spikes);
    }
}
