// From flags to the configuration of a Trainer: every word has the right meaning, and every number arrives in its own
// place.
#include "llmc/flags/flags.h"

#include <doctest/doctest.h>

#include <set>
#include <utility>

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
    if (flag.starts_with("muon-")) o.optimizer.kind = OptimizerKind::muon;
    find_flag(flag)->set(o, word);
    return o;
}

Options with(const char* flag, const char* word) {
    Options o = options_with(flag, word);
    resolve_on_cpu(o);
    return o;
}

Options with_flags(const std::vector<std::pair<std::string, std::string>>& flags) {
    Options o;
    for (const auto& [flag, value] : flags) find_flag(flag)->set(o, value);
    resolve(o, {});
    return o;
}

}  // namespace

TEST_CASE("flags: every word of a flag is a value of its own") {
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
            words++;
        }
    }
    CHECK(words > 30);
}

TEST_CASE("flags: words arrive in their own places") {
    CHECK(with("precision", "fp8").is_fp8());
    CHECK(!with("precision", "bf16").is_fp8());
    CHECK(with("recompute", "norm").recompute == Recompute::norm);
    CHECK(with("offload", "optimizer").sharding.offload_state);
    CHECK(with("offload", "residuals").offload_residuals);
    CHECK(with("schedule", "linear").schedule.kind == ScheduleKind::linear);
    CHECK(with("fp8-recipe", "current").fp8.recipe == Fp8Recipe::current);
    CHECK(with("fp8-grad", "e4m3").fp8.grad == Fp8Grad::e4m3);
    CHECK(with("fp8-amax-algo", "ema").fp8.algorithm == AmaxAlgorithm::ema);
    CHECK(with("fp8-fast-accum", "all").fast_accumulation == FastAccumulation::all);
    CHECK(with("optimizer", "lion").optimizer.kind == OptimizerKind::lion);
    CHECK(with("master", "bf16").optimizer.masters == StateFormat::bf16);
    CHECK(with("gradients", "bf16").sharding.gradients == StateFormat::bf16);
    CHECK(with("adam-moments", "fp8").optimizer.adam_moments == StateFormat::fp8);
    CHECK(with("muon-scale", "spectral").optimizer.muon_scale == MuonScale::spectral);
    CHECK(with("muon-ns", "p").optimizer.muon_ns == MuonSteps::p);
    CHECK(with("clip-kind", "tensor").optimizer.clip_kind == ClipKind::tensor);
    CHECK(with("reduce", "bf16").sharding.wire == Wire::bf16);
}

TEST_CASE("flags: numbers and switches arrive in their own places") {
    const Options o = with_flags({{"precision", "fp8"},
                                  {"batch", "2"},
                                  {"seq", "64"},
                                  {"total-batch", "384"},
                                  {"max-steps", "100"},
                                  {"lr", "1e-3"},
                                  {"warmup", "5"},
                                  {"final-lr-fraction", "0.25"},
                                  {"beta1", "0.5"},
                                  {"beta2", "0.75"},
                                  {"eps", "1e-6"},
                                  {"weight-decay", "0.2"},
                                  {"cautious-decay", "true"},
                                  {"nesterov", "on"},
                                  {"clip", "3"},
                                  {"z-loss", "1e-4"},
                                  {"average", "ema:0.5"},
                                  {"seed", "77"},
                                  {"fp8-layers", "all,-first"},
                                  {"fp8-history", "7"},
                                  {"fp8-margin", "2"},
                                  {"fp8-fallback", "0.25,0.5,3"},
                                  {"fp8-until", "94.5%"},
                                  {"loss-scale", "256,11"},
                                  {"seq-schedule", "16:5"},
                                  {"shard-within", "4"},
                                  {"kernels", "portable"}});
    const TrainerConfig& c = o;
    CHECK(c.batch == 2);
    CHECK(c.seq == 64);
    CHECK(c.shortest_piece == 16);
    CHECK(c.micro_steps == 3);
    CHECK(c.schedule.lr == 1e-3);
    CHECK(c.schedule.warmup == 5);
    CHECK(c.schedule.steps == 100);
    CHECK(c.schedule.final_fraction == 0.25);
    CHECK(c.optimizer.kind == OptimizerKind::adamw);
    const AdamWConfig adamw = c.optimizer.adamw();
    CHECK(adamw.beta1 == 0.5);
    CHECK(adamw.beta2 == 0.75);
    CHECK(adamw.eps == 1e-6);
    CHECK(adamw.weight_decay == 0.2);
    CHECK(adamw.cautious_decay);
    CHECK(adamw.nesterov);
    CHECK(c.optimizer.average_decay == 0.5);
    CHECK(c.optimizer.rounding_seed == 77);
    CHECK(c.clip == 3);
    CHECK(c.z_loss == 1e-4);
    CHECK(c.fp8_layers == Fp8LayerTerms{{"all"}, {"first", false}});
    CHECK(c.fp8.history == 7);
    CHECK(c.fp8.margin == 2);
    CHECK(c.fp8.fallback.saturated == 0.25f);
    CHECK(c.fp8.fallback.underflowed == 0.5f);
    CHECK(c.fp8.fallback.steps == 3);
    CHECK(c.fp8.until == 94);
    CHECK(!c.loss_scale.dynamic);
    CHECK(c.loss_scale.initial == 256);
    CHECK(c.loss_scale.growth_interval == 11);
    CHECK(c.sharding.within == 4);
    CHECK(c.kernels == Kernels::portable);

    // One switch at a time, so that none can be mistaken for another.
    for (const std::string on : {"tf32", "fp8-pow2-scales", "skip-spikes"}) {
        const Options one = with_flags({{on, "true"}});
        CHECK(one.tf32 == (on == "tf32"));
        CHECK(one.fp8.pow2_scales == (on == "fp8-pow2-scales"));
        CHECK(one.skip_spikes == (on == "skip-spikes"));
    }
}

TEST_CASE("flags: each optimizer takes its own settings") {
    const Options lion = with_flags({{"optimizer", "lion"}, {"beta1", "0.5"}, {"weight-decay", "0.2"}});
    CHECK(lion.optimizer.lion().beta1 == 0.5);
    CHECK(lion.optimizer.lion().beta2 == 0.99);
    CHECK(lion.optimizer.lion().weight_decay == 0.2);
    const Options sgd =
        with_flags({{"optimizer", "sgd"}, {"momentum", "0.625"}, {"nesterov", "on"}, {"weight-decay", "0.2"}});
    CHECK(sgd.optimizer.sgd().momentum == 0.625);
    CHECK(sgd.optimizer.sgd().nesterov);
    CHECK(sgd.optimizer.sgd().weight_decay == 0.2);
    CHECK(!with_flags({{"optimizer", "sgd"}}).optimizer.uses_nesterov());
    const OptimizerConfig muon = with_flags({{"optimizer", "normuon"},
                                             {"lr", "2e-3"},
                                             {"weight-decay", "0.3"},
                                             {"momentum", "0.95,300"},
                                             {"cautious-decay", "true"},
                                             {"adamw-lr", "1e-3,vector=6e-3,embedding=4e-3"},
                                             {"adamw-weight-decay", "0.01"}})
                                     .optimizer;
    CHECK(muon.kind == OptimizerKind::normuon);
    CHECK(muon.muon_momentum().momentum == 0.95);
    CHECK(muon.muon_momentum().warmup == 300);
    CHECK(muon.cautious_decay);
    CHECK(muon.uses_nesterov());
    CHECK(muon.weight_decay == 0.3);
    const auto [embedding, head, vector] = muon.rates(2e-3).of;
    CHECK(embedding == doctest::Approx(2));
    CHECK(head == doctest::Approx(0.5));
    CHECK(vector == doctest::Approx(3));
    CHECK(muon.adamw().weight_decay == 0.01);
    CHECK(!muon.adamw().cautious_decay);
    CHECK(!muon.adamw().nesterov);
}
