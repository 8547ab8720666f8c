// The eval command: the losses and accuracies that it prints.
#include "llmc/checkpoint/weight_source.h"
#include "llmc/commands/model_command.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/log/metrics.h"
#include "llmc/log/run_directory.h"
#include "llmc/log/run_files.h"
#include "llmc/model/model_file.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/train/trainer.h"

namespace llmc {

template <class Real>
static ValRecord evaluate(const Options& o, const Inputs& inputs, Ranks& ranks, const WeightSource& weights) {
    std::vector<Options> models{o};
    if (o.against == Against::bf16) models.emplace_back(o).precision = Precision::bf16;
    const auto trainers = load_models<Real>(models, ranks, weights);
    ranks.watchdog.begin_step(0);
    Evaluation<Real> evaluation(o, inputs, *trainers.front(), ranks.watchdog);
    if (o.against == Against::bf16) evaluation.compare_with(*trainers.back());
    const std::optional<ValRecord> record = evaluation.validate(0);
    do_together(ranks.comm, [&] {
        if (!evaluation.unreadable().empty()) refuse_data(evaluation.unreadable());
    });
    return record.value();  // no signal is caught
}

static void print(const Options& o, const WeightSource& weights, const Ranks& ranks, const ValRecord& record) {
    print_line("{}{}: {} parameters, {} on {}, sequences of {}{}", weights.place, o.of_average ? " (average)" : "",
               with_commas(weights.model.parameters()), word_of(o.precision), ranks.device.name,
               counted(o.seq, "token"), o.doc_mask ? ", attention within documents" : "");
    if (!record.losses.empty())
        print_line("{:16} {:>10} {:>12} {:>14}", "validation set", "loss", "perplexity", "bits per byte");
    for (const ValLoss& set : record.losses)
        print_line("{:16} {:10.4f} {:12.3f} {:>14}", set.name.empty() ? "val" : set.name, set.loss, set.perplexity(),
                   set.bits_per_byte ? fmt::format("{:.4f}", *set.bits_per_byte).c_str() : "-");
    if (o.against == Against::bf16)
        print_line("{:16} {:>10} {:>12} {:>11} {:>10} {:>12} {:>9}", "against BF16", "BF16 loss", "difference", "+-",
                   "", "KL in nats", "+-");
    for (const ValLoss& set : record.losses)
        if (const auto& against = set.against_bf16)
            print_line("{:16} {:10.4f} {:+12.6f} {:>11} {:+8.4f} % {:12.4e} {:>9}", set.name.empty() ? "val" : set.name,
                       against->loss, against->difference, error_text(against->difference_error, "{:.6f}"),
                       100 * against->difference / against->loss, against->kl, error_text(against->kl_error, "{:.1e}"));
    if (!record.tasks.empty()) print_line("{:16} {:>10} {:>12} {:>14}", "task", "examples", "acc", "acc_norm");
    for (const TaskScores& task : record.tasks)
        print_line("{:16} {:10} {:12.4f} {:14.4f}", task.name, task.examples, task.accuracy, task.normalized_accuracy);
}

// The names of metrics.jsonl.
static void write_json(const std::string& path, const Options& o, const ValRecord& record) {
    Json json{{"from", o.from}, {"precision", word_of(o.precision)}, {"seq", o.seq}};
    if (o.of_average) json["average"] = true;
    json.update(metrics_json(record));
    json.erase("step");
    for (const TaskScores& task : record.tasks) json[task.name + "_examples"] = task.examples;
    write_file(path, json_text(json, 2) + "\n");
}

ExitCode evaluate_weights(Options o, const LaunchInfo& launch) {
    if ((o.val.empty() || o.val_batches == 0) && o.hellaswag.empty() && o.task.empty())
        refuse("eval: nothing to evaluate on; add --val 'GLOB', --hellaswag FILE or --task NAME=FILE");
    if (o.against == Against::bf16) {
        if (!o.given.contains("precision")) o.precision = Precision::fp8;
        if (o.val.empty() || o.precision == Precision::fp32)
            refuse("eval --against bf16: compares losses in FP8 or BF16; add --val 'GLOB' and --precision fp8");
    }
    o.recompute = Recompute::block;                     // keeps nothing for a backward pass
    const std::string file = std::exchange(o.out, "");  // there is no run directory
    const std::filesystem::path result = std::filesystem::path(".") / file;
    if (is_run_file(result.parent_path().string(), result.filename().string()))
        refuse("eval: --out {} would replace a file of a run; choose another", file);
    Inputs inputs(o);
    const std::unique_ptr<WeightSource> weights = open_weights(o.from, o.of_average);
    take_flags(run_config(o.from), {"seq", "doc-mask"}, o);  // so that the loss is comparable with the run's
    Ranks ranks(o, launch);
    ranks.connect(o, launch);
    ResolveInputs surroundings;
    inputs.describe(surroundings);
    resolve_for(weights->model, o, surroundings, ranks);
    if (ranks.comm.is_main())
        for (const std::string& note : o.notes) print_error("note: {}", note);
    inputs.tokenizer = find_tokenizer("", o.from, *weights);  // as in the run; check() looks next to the shards
    inputs.check(o);
    if (ranks.comm.world() > 1) {
        const std::string model = json_text(model_json(weights->model));
        InputFingerprints read = inputs.fingerprints(o);
        read.emplace_back("model in " + o.from, checksum(model.data(), model.size()));
        require_same_inputs(ranks.comm, read);
    }
    ranks.comm.require_equal("configuration", config_json(o));
    const ValRecord record = o.precision == Precision::fp32 ? evaluate<float>(o, inputs, ranks, *weights)
                                                            : evaluate<bf16>(o, inputs, ranks, *weights);
    if (ranks.comm.is_main()) {
        print(o, *weights, ranks, record);
        if (!file.empty()) write_json(file, o, record);
    }
    ranks.finish();
    return ExitCode::ok;
}

}  // namespace llmc
