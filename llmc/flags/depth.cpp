// --depth N, nanochat's one dial (https://github.com/karpathy/nanochat, scripts/base_train.py): a model of N layers,
// and the tokens to train on, the batch and the learning rates that follow from its size.
// build: fuzzed
#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/data/order.h"
#include "llmc/flags/rows.h"

namespace llmc {
namespace {

// nanochat's values, tuned at 12 layers. Two of its schedules are left out: weight decay falls to 0 along a cosine, and
// momentum falls again at the end. AdamW has the numbers of modded-nanogpt's track 3, while nanochat has different ones
// for embeddings and for the head.
constexpr int kReferenceDepth = 12;
constexpr double kTokensPerParameter = 12;  // counting the blocks' matrices and the head
constexpr double kReferenceBatch = 1 << 19;
constexpr double kBatchExponent = 0.383;  // the batch grows with this power of the tokens: arXiv 2505.13738
constexpr double kMatrixRate = 0.02, kEmbeddingRate = 0.3, kHeadRate = 0.008, kReferenceChannels = 768;
constexpr double kWeightDecay = 0.28;

std::string model_of(int depth) { return "nano-d" + std::to_string(depth); }

double tokens_for(const ModelConfig& m) {
    return std::floor(kTokensPerParameter * static_cast<double>(m.matrix_parameters()));
}

// Sets the options that were not given, and records them as flags.
class Fill {
public:
    explicit Fill(Options& options) : options_(options) {}

    template <class T, class Struct>
    void operator()(const char* name, T Struct::*field, const std::type_identity_t<T>& value) {
        if (options_.given.contains(name)) return;
        field_of(options_, field) = value;
        const Flag& flag = *find_flag(name);
        text_ += flag.short_name ? fmt::format(" -{:c}", flag.short_name) : fmt::format(" --{}", name);
        const Json json = *flag.get(options_);
        if (!flag.is_switch()) text_ += " " + (json.is_string() ? json.get<std::string>() : json_text(json));
    }
    const std::string& text() const { return text_; }

private:
    Options& options_;
    std::string text_;
};

void check_depth(const Options& o) {
    const ModelConfig& m = o.model;
    if (m.layers != o.depth)
        refuse(
            "--depth {} is a model of {} layers, and this one (--layers, or --init-from's) has {}; leave one of them "
            "out",
            o.depth, o.depth, m.layers);
    if (o.given.contains("optimizer") && !is_muon(o.optimizer.kind))
        refuse("--depth {} sets rates for normuon or muon, not for --optimizer {}; use -e {} and give rates", o.depth,
               word_of(o.optimizer.kind), model_of(o.depth));
    if (o.given.contains("muon-scale") && o.optimizer.muon_scale != MuonScale::spectral && !o.given.contains("lr"))
        refuse("--depth sets a rate for --muon-scale spectral; with " + std::string(word_of(o.optimizer.muon_scale)) +
               " give --lr too");
}

}  // namespace

void resolve_depth_model(Options& o) {
    if (o.depth == 0) return;
    const std::string name = model_of(o.depth);
    if (!o.model_name.empty() && o.model_name != name)
        refuse("--depth {} is the model {}, and --model says {}; leave one of them out", o.depth, name, o.model_name);
    o.model_name = name;
}

void resolve_depth(Options& o) {
    if (o.depth == 0) return;
    check_depth(o);
    const ModelConfig& m = o.model;
    ModelConfig reference = find_model(model_of(kReferenceDepth));
    reference.vocab = m.vocab;
    const double tokens = tokens_for(m), times = tokens / tokens_for(reference);

    Fill fill(o);
    fill("seq", &Options::seq, m.context);
    const double batch = kReferenceBatch * std::pow(times, kBatchExponent);
    fill("total-batch", &Options::total_batch, int64_t{1} << std::lround(std::log2(batch)));
    const double batch_rate = std::sqrt(static_cast<double>(o.total_batch) / kReferenceBatch);
    const double width_rate = batch_rate / std::sqrt(m.channels / kReferenceChannels);
    if (!o.given.contains("epochs") || sources_from_text(o.train).is_mixture())
        fill("max-steps", &ScheduleConfig::steps, static_cast<int64_t>(tokens) / o.total_batch);
    fill("lr", &ScheduleConfig::lr, kMatrixRate * batch_rate);
    fill("schedule", &ScheduleConfig::kind, ScheduleKind::wsd_linear);
    fill("warmup", &ScheduleConfig::warmup, 40);
    fill("final-lr-fraction", &ScheduleConfig::final_fraction, 0.05);
    fill("cooldown", &ScheduleConfig::cooldown, 0.65);
    fill("optimizer", &OptimizerConfig::kind, OptimizerKind::normuon);
    fill("weight-decay", &OptimizerConfig::weight_decay, kWeightDecay * batch_rate / times);
    fill("beta1", &OptimizerConfig::beta1, 0.8);
    fill("beta2", &OptimizerConfig::beta2, 0.95);
    fill("eps", &OptimizerConfig::eps, 1e-10);
    if (!o.given.contains("momentum")) o.optimizer.muon_momentum_warmup = 400;
    fill("momentum", &OptimizerConfig::momentum, 0.97);
    fill("muon-ns", &OptimizerConfig::muon_ns, MuonSteps::p);
    fill("muon-scale", &OptimizerConfig::muon_scale, MuonScale::spectral);
    fill("cautious-decay", &OptimizerConfig::cautious_decay, true);
    if (!o.given.contains("adamw-lr")) {
        o.optimizer.embedding_lr = kEmbeddingRate * width_rate;
        o.optimizer.head_lr = kHeadRate * width_rate;
    }
    fill("adamw-lr", &OptimizerConfig::adamw_lr, o.schedule.lr);
    fill("adamw-weight-decay", &OptimizerConfig::adamw_weight_decay, 0.001);
    fill("clip", &Options::clip, 0);
    o.notes.push_back(fmt::format("--depth {} stands for -e {}{}", o.depth, o.model_name, fill.text()));
}

}  // namespace llmc
