// --depth: the numbers of nanochat's base_train.py, computed from its formulas by hand for four runs, the precedence of
// flags, and that the printed flags give the same run.
#include "llmc/flags/options.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

Options resolved_flags(const std::string& flags, int data_vocab = 0) {
    std::vector<std::string> arguments = split("train_gpt -i x " + flags, ' ');
    std::erase(arguments, "");
    std::vector<const char*> pointers;
    for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
    Options options = parse_options(static_cast<int>(pointers.size()), pointers.data()).options;
    ResolveInputs inputs;
    inputs.data_vocab = data_vocab;
    resolve(options, inputs);
    return options;
}

std::string depth_refusal(const std::string& flags) {
    return error_of([&] { resolved_flags(flags); });
}

// The flags in the note.
std::string spelled_out(const Options& o) {
    for (const std::string& note : o.notes)
        if (const size_t at = note.find(" stands for "); at != std::string::npos) return note.substr(at + 12);
    return "";
}

}  // namespace

TEST_CASE("depth: model, tokens, batch and rates are nanochat's") {
    const struct {
        int depth, vocab, channels;
        int64_t batch, steps;
        double lr, embedding_lr, head_lr, weight_decay;
    } runs[] = {
        {8, 32768, 512, 262144, 1920, 0.014142135623730952, 0.2598076211353316, 0.00692820323027551,
         0.5197234841721124},
        {12, 32768, 768, 524288, 2520, 0.02, 0.3, 0.008, 0.28},
        {20, 32768, 1280, 1048576, 4980, 0.028284271247461905, 0.3286335345030997, 0.00876356092008266,
         0.10018765959944337},
        {26, 50257, 1664, 1048576, 10843, 0.028284271247461905, 0.2882306768491568, 0.007686151382644183,
         0.05162532063777859},
    };
    for (const auto& run : runs) {
        CAPTURE(run.depth);
        const Options o = resolved_flags("--depth " + std::to_string(run.depth), run.vocab);
        CHECK(o.model.architecture == &kNano);
        CHECK(o.model.layers == run.depth);
        CHECK(o.model.channels == run.channels);
        CHECK(o.model.heads * 128 == run.channels);
        CHECK(o.model.vocab == run.vocab);
        CHECK(o.seq == 2048);
        CHECK(o.total_batch == run.batch);
        CHECK(o.schedule.steps == run.steps);
        CHECK(o.schedule.lr == doctest::Approx(run.lr).epsilon(1e-12));
        CHECK(o.optimizer.embedding_lr == doctest::Approx(run.embedding_lr).epsilon(1e-12));
        CHECK(o.optimizer.head_lr == doctest::Approx(run.head_lr).epsilon(1e-12));
        CHECK(o.optimizer.weight_decay == doctest::Approx(run.weight_decay).epsilon(1e-12));
        CHECK(o.schedule.kind == ScheduleKind::wsd_linear);
        CHECK(o.schedule.warmup == 40);
        CHECK(o.schedule.cooldown == 0.65);
        CHECK(o.schedule.final_fraction == 0.05);
        CHECK(o.optimizer.kind == OptimizerKind::normuon);
        CHECK(o.optimizer.momentum == 0.97);
        CHECK(o.optimizer.nesterov == Nesterov::on);
        CHECK(o.optimizer.muon_momentum_warmup == 400);
        CHECK(o.optimizer.cautious_decay);
        CHECK(o.optimizer.muon_scale == MuonScale::spectral);
        CHECK(o.optimizer.muon_ns == MuonSteps::p);
        CHECK(o.clip == 0);
    }
}

TEST_CASE("depth: the batches that nanochat reports") {
    for (const auto& [depth, batch] : {std::pair{8, 1 << 18},
                                       {10, 1 << 19},
                                       {16, 1 << 19},
                                       {18, 1 << 20},
                                       {26, 1 << 20},
                                       {32, 1 << 21},
                                       {50, 1 << 21}})
        CHECK(resolved_flags("--depth " + std::to_string(depth)).total_batch == batch);
}

TEST_CASE("depth: it stands for the flags that it prints") {
    for (const auto& [depth, others] :
         {std::pair{"12", ""}, {"20", "--lr 0.01 -x 100"}, {"8", "-d 1048576 --clip 1"}}) {
        CAPTURE(depth);
        const Options by_depth = resolved_flags(std::string("--depth ") + depth + " " + others);
        const std::string all = spelled_out(by_depth);
        REQUIRE(!all.empty());
        Options by_flags = resolved_flags(all + " " + others);  // what was given is not repeated
        CHECK(config_json(by_flags) != config_json(by_depth));  // by "depth" alone
        by_flags.depth = by_depth.depth;
        CHECK(config_json(by_flags) == config_json(by_depth));
    }
}

TEST_CASE("depth: flags that are given win, in a file too, and others follow them") {
    const Options alone = resolved_flags("--depth 12"), larger = resolved_flags("--depth 12 -d 2097152");
    CHECK(larger.total_batch == 2097152);
    CHECK(larger.schedule.lr == doctest::Approx(2 * alone.schedule.lr));  // the root of the batch
    CHECK(larger.optimizer.head_lr == doctest::Approx(2 * alone.optimizer.head_lr));
    CHECK(larger.optimizer.weight_decay == doctest::Approx(2 * alone.optimizer.weight_decay));
    CHECK(larger.schedule.steps == alone.schedule.steps / 4);
    const Options given = resolved_flags("--depth 12 --lr 3e-4 -t 1024 --optimizer muon -k cosine --adamw-lr 0.002");
    CHECK(given.schedule.lr == 3e-4);  // the default, but asked for
    CHECK(given.seq == 1024);
    CHECK(given.optimizer.kind == OptimizerKind::muon);
    CHECK(given.schedule.kind == ScheduleKind::cosine);
    CHECK(given.optimizer.embedding_lr == 0.002);
    CHECK(given.optimizer.head_lr == 0.002);
    CHECK(given.optimizer.weight_decay == alone.optimizer.weight_decay);
    CHECK(spelled_out(given).find("--optimizer") == std::string::npos);
    CHECK(resolved_flags("--depth 12 -e nano-d12").schedule.lr == alone.schedule.lr);
    const Options wide = resolved_flags("--depth 12 --channels 1536 --heads 12");
    CHECK(wide.model.channels == 1536);
    CHECK(wide.optimizer.embedding_lr < alone.optimizer.embedding_lr);
    CHECK(resolved_flags("-e nano-d12").schedule.lr == 3e-4);
    CHECK(resolved_flags("-e nano-d12").notes.empty());
}

TEST_CASE("depth: contradictions are refused") {
    CHECK(depth_refusal("--depth 12 -e d12") ==
          "--depth 12 is the model nano-d12, and --model says d12; leave one of them out");
    CHECK(depth_refusal("--depth 12 --layers 6") ==
          "--depth 12 is a model of 12 layers, and this one (--layers, or --init-from's) has 6; leave one of them out");
    CHECK(depth_refusal("--depth 12 --optimizer adamw") ==
          "--depth 12 sets rates for normuon or muon, not for --optimizer adamw; use -e nano-d12 and give rates");
    CHECK(depth_refusal("--depth 12 --muon-scale rms") ==
          "--depth sets a rate for --muon-scale spectral; with rms give --lr too");
    CHECK(depth_refusal("--depth 12 --muon-scale rms --lr 1e-3").empty());
    CHECK(depth_refusal("--depth 0") == "--depth: 0 is out of range; it must be from 1 to 1000");
}
