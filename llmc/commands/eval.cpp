// The eval command: its arguments, and the losses and accuracies that it prints.
#include "llmc/commands/model_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/flags/flags.h"
#include "llmc/run/evaluation.h"

namespace llmc {
namespace {

struct Request {
    std::string from, out;
    bool average = false;
    Options options;
};

// Returns false if help was asked for, and printed.
bool parse(const std::vector<std::string>& arguments, Request& request) {
    CLI::App app("Prints the loss of a model on validation sets, and its scores in tasks.", "train_gpt eval");
    app.add_option("--from,--checkpoint", request.from, kWeightsHelp)->required()->type_name("PATH");
    app.add_flag("--average", request.average, kAverageHelp);
    app.add_option("-o,--out", request.out, "also write the numbers to this file, as JSON")->type_name("FILE");
    Options& o = request.options;
    o.precision = Precision::bf16;
    o.val_batches = -1;
    add_flags(app,
              {"val", "hellaswag", "task", "val-batches", "batch", "seq", "doc-mask", "doc-positions", "precision",
               "tf32", "fp8-recipe", "fp8-layers", "fp8-emulation", "zero", "comm", "timeout-start", "timeout-step"},
              o);
    if (!parse_arguments(app, arguments)) return false;
    if (o.val.empty() && o.hellaswag.empty() && o.task.empty())
        refuse("eval: nothing to evaluate on; add --val 'GLOB', --hellaswag FILE or --task NAME=FILE");
    o.recompute = Recompute::block;  // keeps nothing for a backward pass
    return true;
}

template <class Real>
ValRecord evaluate(const Request& request, const Inputs& inputs, Ranks& ranks, const WeightSource& weights) {
    const auto trainer = load_model<Real>(request.options, ranks, weights);
    ranks.watchdog.begin_step(0);
    return Evaluation<Real>(request.options, inputs, *trainer, ranks.watchdog)
        .validate(0)
        .value();  // no signal is caught
}

void print(const Request& request, const ModelConfig& model, const Ranks& ranks, const ValRecord& record) {
    print_line("{}{}: {} parameters, {} on {}", request.from, request.average ? " (average)" : "",
               with_commas(model.parameters()), word_of(request.options.precision), ranks.device.name);
    if (!record.losses.empty())
        print_line("{:16} {:>10} {:>12} {:>14}", "validation set", "loss", "perplexity", "bits per byte");
    for (const ValLoss& set : record.losses)
        print_line("{:16} {:10.4f} {:12.3f} {:>14}", set.name.empty() ? "val" : set.name, set.loss, set.perplexity(),
                   set.bits_per_byte ? fmt::format("{:.4f}", *set.bits_per_byte).c_str() : "-");
    if (!record.tasks.empty()) print_line("{:16} {:>10} {:>12} {:>14}", "task", "examples", "acc", "acc_norm");
    for (const TaskScores& task : record.tasks)
        print_line("{:16} {:10} {:12.4f} {:14.4f}", task.name, task.examples, task.accuracy, task.normalized_accuracy);
}

// The names of metrics.jsonl.
void write_json(const Request& request, const ValRecord& record) {
    nlohmann::ordered_json json{{"from", request.from}, {"precision", word_of(request.options.precision)}};
    if (request.average) json["average"] = true;
    json.update(metrics_json(record));
    json.erase("step");
    for (const TaskScores& task : record.tasks) json[task.name + "_examples"] = task.examples;
    write_file(request.out, json_text(json, 2) + "\n");
}

}  // namespace

ExitCode evaluate_weights(const std::vector<std::string>& arguments, const LaunchInfo& launch) {
    Request request;
    if (!parse(arguments, request)) return ExitCode::ok;
    Options& o = request.options;
    Inputs inputs(o);
    const std::unique_ptr<WeightSource> weights = open_weights(request.from, request.average);
    Ranks ranks(o, launch);
    ranks.connect(o, launch);
    ResolveInputs surroundings;
    inputs.describe(surroundings);
    resolve_for(weights->model(), o, surroundings, ranks);
    inputs.tokenizer = find_tokenizer("", request.from, *weights);  // as in the run; check() looks next to the shards
    inputs.check(o);
    ranks.comm.require_equal("configuration", config_json(o));
    const ValRecord record = o.precision == Precision::fp32 ? evaluate<float>(request, inputs, ranks, *weights)
                                                            : evaluate<bf16>(request, inputs, ranks, *weights);
    if (ranks.comm.is_main()) {
        print(request, weights->model(), ranks, record);
        if (!request.out.empty()) write_json(request, record);
    }
    ranks.finish();
    return ExitCode::ok;
}

}  // namespace llmc
