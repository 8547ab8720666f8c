// The inspect command: one micro-batch in FP32, BF16 and FP8 from the same weights. It prints the loss of each, how far
// the gradients are from those in FP32, and the errors of each layer's FP8 products.
#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/checkpoint/weight_source.h"
#include "llmc/commands/model_command.h"
#include "llmc/data/loader.h"
#include "llmc/flags/flags.h"
#include "llmc/log/metrics.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/train/inspection.h"
#include "llmc/train/state.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

// Known if the weights are a training checkpoint's.
struct Origin {
    Json config = Json::object();
    TrainerState state;
    double tokens = 0;  // in the next step
};

Origin origin_of(const std::string& checkpoint) {
    Origin origin;
    if (checkpoint.empty()) return origin;
    const CheckpointReader reader(checkpoint);
    origin.config = *reader.manifest().config;
    origin.state = state_from_json(*reader.manifest().state);
    const Json tokens = origin.config.value("total-batch", Json()),
               stages = origin.config.value("batch-schedule", Json());
    if (!tokens.is_number_unsigned()) return origin;
    const TokenSchedule batches(batch_stages_from_text(stages.is_string() ? stages.get<std::string>() : "off"),
                                tokens.get<int64_t>());
    origin.tokens = static_cast<double>(batches.tokens_of(reader.manifest().step + 1));
    return origin;
}

struct Inspected {
    std::string name;  // "fp8 delayed"
    double loss = 0;
    std::map<std::string, GradientSums> gradients;  // by tensor, next to those in FP32
    std::map<std::string, double> projections;

    GradientSums all() const {
        GradientSums sum;
        for (const auto& [tensor, gradient] : gradients) sum += gradient;
        return sum;
    }
};

struct Inspection {
    Inspected fp32, bf16, fp8;
    std::map<std::string, MatmulErrors::OfLayer> matmuls;  // by layer
    std::map<std::string, std::string> layer_of;           // by the tensor of its weight
    DivergenceResult divergence;                           // of FP8 from BF16
    bool has_run_scales = false;                           // FP8 scales are the run's, not measured in this micro-batch
};

// The projection of a gradient on a fixed direction of +1 and -1. Gradients of equal norm may differ; then their
// projections differ, by about the norm of the difference.
double projection(const std::vector<float>& gradient) {
    double sum = 0;
    for (size_t i = 0; i < gradient.size(); i++) {
        const double value = static_cast<double>(gradient[i]);
        sum += mix64((i + 1) * kGolden64) & 1 ? value : -value;
    }
    return sum;
}

// FP8 scales depend on the loss scale, on the weight of the losses and on the number of updates. So the micro-batch
// runs with those of the run's next step.
struct Inspector {
    const Options& o;
    const Ranks& ranks;
    const WeightSource& weights;
    const Origin& origin;
    const ResolveInputs& surroundings;
    const MicroBatch batch;

    template <class Real>
    std::unique_ptr<Trainer<Real>> make_trainer(Precision precision) const {
        Options options = o;
        options.precision = precision;
        resolve_for(weights.model, options, surroundings, ranks);
        TrainerConfig config = options;
        config.recompute = Recompute::none;
        config.optimizer.kind = OptimizerKind::sgd;  // no step is taken; without momentum SGD keeps no moments
        config.optimizer.momentum = 0;
        config.loss_scale = {};
        config.loss_scale.initial = origin.state.optimizer.loss_scale.scale;
        auto trainer = std::make_unique<Trainer<Real>>(config, ranks.comm);
        trainer->allocate();
        trainer->optimizer().restore(origin.state.optimizer, trainer->stream());
        load_weights(*trainer, weights, o.from);
        return trainer;
    }

    // `reference`: gradients in FP32.
    template <class Real>
    Inspected run(Trainer<Real>& trainer, std::map<std::string, std::vector<float>>& reference) const {
        const double tokens = static_cast<double>(o.batch) * trainer.config().seq;
        const float weight = static_cast<float>(origin.tokens > 0 ? tokens / origin.tokens : 1);
        InspectedBatch result = inspect_batch(trainer, batch, weight);
        if (reference.empty()) reference = result.gradients;
        Inspected inspected;
        inspected.loss = result.loss;
        for (const auto& [tensor, gradient] : result.gradients) {
            inspected.gradients[tensor] = GradientSums(gradient, reference.at(tensor));
            inspected.projections[tensor] = projection(gradient);
        }
        return inspected;
    }

    Inspection inspect() const {
        Inspection f;
        std::map<std::string, std::vector<float>> reference;
        f.fp32 = run(*make_trainer<float>(Precision::fp32), reference);
        const auto in_fp8 = make_trainer<bf16>(Precision::fp8), in_bf16 = make_trainer<bf16>(Precision::bf16);
        const std::optional<Fp8Saved>& saved = origin.state.fp8;
        f.has_run_scales = saved && saved->left.empty() && in_fp8->fp8()->restore(*saved, in_fp8->stream());
        f.fp8 = run(*in_fp8, reference);
        const MatmulErrors errors(*in_fp8, *in_bf16);
        f.bf16 = run(*in_bf16, reference);
        f.matmuls = errors.by_layer();
        in_fp8->evaluate(batch.tokens, batch.targets);
        Divergence divergence;
        divergence.add(*in_fp8, *in_bf16, batch.tokens, batch.targets);
        f.divergence = divergence.result(ranks.comm);
        for (const Linear<bf16>* layer : in_bf16->model().linear().all())
            f.layer_of[in_bf16->table().tensor(layer->weight_place()).name] = layer->name();
        f.fp32.name = "fp32";
        f.bf16.name = "bf16";
        f.fp8.name = std::string("fp8 ") + word_of(o.fp8.recipe);
        return f;
    }
};

void print(const Inspection& f, const ModelConfig& model) {
    print_line("{:16} {:>10} {:>11} {:>10} {:>10}", "precision", "loss", "to fp32", "cosine", "gain");
    for (const Inspected* i : {&f.fp32, &f.bf16, &f.fp8})
        print_line("{:16} {:10.6f} {:>+9.4f} % {:10.6f} {:10.6f}", i->name, i->loss, 100 * (i->loss / f.fp32.loss - 1),
                   i->all().cosine(), i->all().gain());
    print_line("KL(BF16 || FP8): {:.4e} nats per token, +- {}", f.divergence.kl,
               error_text(f.divergence.kl_error, "{:.1e}"));
    print_line("\n{:16} {:^32} {:^32}\n{:16} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "gradient of the weight",
               "error of the FP8 matmul", "layer", "cos bf16", "cos fp8", "gain fp8", "forward", "dgrad", "wgrad");
    for (const TensorRow& row : all_tensors(model)) {
        if (row.columns == 0) continue;  // not a matrix
        const GradientSums& gradient = f.fp8.gradients.at(row.name);
        const auto layer = f.layer_of.find(row.name);
        const auto matmul = layer == f.layer_of.end() ? f.matmuls.end() : f.matmuls.find(layer->second);
        std::string errors;
        for (int kind = 0; kind < MatmulErrors::kKinds && matmul != f.matmuls.end(); kind++)
            errors += fmt::format(" {:8.3f} %", 100 * MatmulErrors::error(matmul->second[kind]));
        print_line("{:16} {:10.6f} {:10.6f} {:10.6f}{}", layer == f.layer_of.end() ? row.name : layer->second,
                   f.bf16.gradients.at(row.name).cosine(), gradient.cosine(), gradient.gain(), errors);
    }
}

Json json_of(const GradientSums& gradient) {
    return {{"norm", std::sqrt(gradient.squares)}, {"cosine", gradient.cosine()}, {"gain", gradient.gain()}};
}

Json json_of(const Inspection& f, const Options& o, const Ranks& ranks) {
    Json json = {{"from", o.from},
                 {"device", ranks.device.name},
                 {"recipe", word_of(o.fp8.recipe)},
                 {"scales", f.has_run_scales ? "checkpoint" : "measured"}};
    for (const auto& [precision, i] : {std::pair{"fp32", &f.fp32}, {"bf16", &f.bf16}, {"fp8", &f.fp8}}) {
        Json& entry = json[precision] = {{"loss", i->loss}};
        entry.update(json_of(i->all()));
        for (const auto& [tensor, gradient] : i->gradients) {
            Json& of_tensor = entry["gradients"][tensor] = json_of(gradient);
            of_tensor["projection"] = i->projections.at(tensor);
        }
    }
    json["against_bf16"] = divergence_json(f.divergence);
    for (const auto& [layer, sums] : f.matmuls)
        for (int kind = 0; kind < MatmulErrors::kKinds; kind++)
            json["matmul_errors"][layer][MatmulErrors::kNames[kind]] = MatmulErrors::error(sums[kind]);
    return json;
}

}  // namespace

ExitCode inspect_weights(Options o) {
    const std::string checkpoint = newest_checkpoint(o.from);
    const std::unique_ptr<WeightSource> weights = open_weights(checkpoint.empty() ? o.from : checkpoint);
    weights->verify();
    const Origin origin = origin_of(checkpoint);
    std::vector<std::string> names;
    for (const Flag& flag : find_command("inspect").flags) names.push_back(flag.long_name);
    take_flags(origin.config, names, o);
    o.schedule.steps = 1;  // resolve() wants a length, and no epoch says that of a mixture
    if (o.train.empty()) refuse("inspect: no checkpoint of a run names the tokens for {}; add --train 'GLOB'", o.from);
    const ShardSet shards(sources_from_text(o.train).patterns);
    shards.check_vocabulary(weights->model.vocab);
    ResolveInputs surroundings;
    surroundings.end_token = end_token_of(&shards);
    Ranks ranks(o, {});
    ranks.connect(o, {});
    resolve_for(weights->model, o, surroundings, ranks);
    if (o.doc_mask) check_end_token(shards, o);
    const SampleOrder order({shards.samples(o.seq)}, {{0, {1}}}, o.seed);
    TrainLoader loader(shards, order, o.batch, o.seq, 0, 1, 0, weights->model.vocab);
    const Inspection inspection = Inspector{o, ranks, *weights, origin, surroundings, loader.next()}.inspect();
    if (o.json) {
        print_line("{}", json_text(json_of(inspection, o, ranks), 1));
    } else {
        print_line("{}: {} of {}, FP8 scales {}\n", checkpoint.empty() ? o.from : checkpoint,
                   counted(int64_t{o.batch} * o.seq, "token"), o.train,
                   inspection.has_run_scales ? "of the checkpoint" : "measured in this micro-batch");
        print(inspection, weights->model);
    }
    ranks.finish();
    return ExitCode::ok;
}

}  // namespace llmc
