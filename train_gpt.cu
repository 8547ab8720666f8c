// train_gpt: pretrains a GPT from token shards. train() is the training loop, run_program() turns flags into a run,
// run_command() starts the other commands, and main() turns errors into exit codes.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

// flags
#include "llmc/flags/options.h"  // Options, parse_options, parse_command, resolve, config_json, printed_config

// the data and the other ranks, which decide defaults
#include "llmc/comm/agreement.h"  // require_same_inputs
#include "llmc/comm/comm.h"       // launch_environment, leave
#include "llmc/device/runtime.h"  // prepare_process
#include "llmc/run/inputs.h"      // Inputs: training and validation data, the tokenizer
#include "llmc/run/ranks.h"       // Ranks: the communicator, the watchdog over it, this rank's device

// before the first step
#include "llmc/commands/planning.h"  // AskedRun, fit_into_memory, plan_rank, plan_run, predicted_seconds
#include "llmc/linear/tune.h"        // load_products
#include "llmc/run/reports.h"        // describe_start
#include "llmc/run/resume.h"         // find_checkpoint, set_weights
#include "llmc/run/start.h"          // prepare_directory
#include "llmc/run/tuning.h"         // tune_run: the algorithms of matmuls; peak_tflops

// training
#include "llmc/run/run.h"        // Run: batches, records, validation, checkpoints, the end
#include "llmc/run/stop.h"       // install_signal_handlers
#include "llmc/train/trainer.h"  // Trainer: the model, the optimizer, a step

// other commands
#include "llmc/commands/model_command.h"  // evaluate_weights, sample_text, export_weights, inspect_weights

using namespace llmc;

namespace {

// --------------------------------------------------------------------------------------------------------------------
// the training loop

template <class Real>
ExitCode train(const Options& options, const Inputs& inputs, const Tuning& tuning, Ranks& ranks,
               RunDirectory& directory, std::optional<Resumed>& resumed) {
    TrainerConfig config = options;
    config.products = tuning.products;
    Trainer<Real> trainer(config, ranks.comm);
    trainer.allocate();
    if (std::string(ranks.comm.name()) == "nccl")
        load_products(trainer.kinds_of_products(), trainer.matmul(), trainer.stream());
    // from a checkpoint or a file, or fresh
    const RunPosition position = set_weights(trainer, options, inputs, ranks, resumed);
    const CardFacts card{tuning.summary, peak_tflops(ranks.device, options.precision, tuning.rates)};
    Run<Real> run(options, inputs, card, ranks, directory, position, trainer);

    run.begin();  // validate before the first step
    while (run.goes_on()) {
        trainer.begin_step(run.begin_step());
        // forward and backward on micro-batches; gradients accumulate in FP32
        for (int m = 0; m < run.micro_steps(); m++) {
            const MicroBatch batch = run.load_batch();
            trainer.micro_step(batch);
        }
        // reduce gradients over the ranks, global norm, clip, learning rate, update of the FP32 master weights, FP8
        // scales, then FP8 or BF16 weights for the next step; all of it on the device, without waiting
        const std::vector<Fp8Fallback> fallbacks = trainer.finish_step();
        run.end_step(fallbacks);  // ranks agree whether to stop; report the step before this one
        // once in a while: validate, sample, save
        if (run.evaluation_is_due()) run.evaluate();
        if (run.checkpoint_is_due()) run.save();
    }
    return run.finish();  // last checkpoint, final weights, exit code
}

// --------------------------------------------------------------------------------------------------------------------
// from flags to a run

// Output that was asked for must not get lost silently. (A run continues without its reader.)
ExitCode printed(ExitCode code) {
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(ExitCode::failure, "standard output cannot be written, so some of the output is missing");
    return code;
}

ExitCode print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    return printed(ExitCode::ok);
}

ExitCode run_program(int argc, char** argv, const LaunchInfo& launch) {
    ParsedOptions parsed = parse_options(argc, argv);
    if (parsed.text) return print(*parsed.text);
    Options& given = parsed.options;
    if (given.bench) only_bench(given);
    const bool planning = given.dry_run || given.estimate_scaling || given.print_config;
    if (!planning) install_signal_handlers();

    // Open the data and meet the other ranks, which together with the flags decide all defaults.
    Inputs inputs(given);
    Ranks ranks(given, launch);
    if (planning)
        ranks.plan(given);  // works on a machine without a GPU
    else
        ranks.connect(given, launch);
    ResolveInputs surroundings;
    inputs.describe(surroundings);
    ranks.describe(surroundings);
    const AskedRun asked{given, surroundings};
    resolve(given, surroundings);
    inputs.check(given);
    if (given.print_config) return print(printed_config(given));
    if (planning) return printed(plan_run(asked, given, inputs));

    // Refuse ranks that disagree, and a run that does not fit into memory unless --fit finds one that does.
    const Comm& comm = ranks.comm;
    if (comm.world() > 1) require_same_inputs(comm, inputs.fingerprints(given));
    comm.require_equal("configuration", config_json(given));
    comm.require_equal("command line", collective_flags(given));
    const Options options = fit_into_memory(asked, given, ranks);
    const StagePlan plan = plan_rank(options, comm);
    if (!inputs.train && options.bench) inputs.train = std::make_unique<ShardSet>(bench_tokens(options));
    inputs.set_order(options);  // again, because --fit may have changed the batch, and --bench has its data only now

    // Find the checkpoint to resume from, and choose the algorithms of matmuls on this card.
    RunDirectory directory(comm.is_main() ? options.out : "");
    std::optional<Resumed> resumed = find_checkpoint(options, inputs, ranks);
    const Tuning tuning = tune_run(options, plan.products, ranks, resumed ? &*resumed : nullptr);
    prepare_directory(directory, options, inputs, resumed);
    const RunOutlook outlook{inputs.sources.is_mixture() ? 0 : surroundings.train_tokens,
                             resumed ? resumed->position.step + 1 : 1,
                             predicted_seconds(options, plan, comm, ranks.device), inputs.describe_sources(options)};
    if (comm.is_main()) std::fputs(describe_start(options, ranks, outlook).c_str(), stdout);

    ExitCode code = ExitCode::failure;
    try {
        code = options.precision == Precision::fp32 ? train<float>(options, inputs, tuning, ranks, directory, resumed)
                                                    : train<bf16>(options, inputs, tuning, ranks, directory, resumed);
    } catch (const Error& error) {
        ranks.watchdog.report_loss(error);
        throw;
    }
    ranks.finish();
    return code;
}

// Runs the command that the first argument names, if it is not training. Sets `launch` for eval, which can run on
// several ranks.
std::optional<ExitCode> run_command(const std::vector<std::string>& arguments, LaunchInfo& launch) {
    if (arguments.empty()) return std::nullopt;
    const std::string& command = arguments[0];
    const std::vector<std::string> flags(arguments.begin() + 1, arguments.end());
    if (command != "eval" && command != "sample" && command != "export" && command != "inspect") return std::nullopt;
    const ParsedOptions parsed = parse_command(command, flags);
    if (parsed.text) return print(*parsed.text);
    const LaunchInfo launched = launch_environment();
    if (command != "eval" && launched.world > 1)
        refuse("{}: runs in one process, not in {}; start it without mpirun or srun", command, launched.world);
    if (command == "sample") return sample_text(parsed.options);
    if (command == "export") return export_weights(parsed.options);
    if (command == "inspect") return inspect_weights(parsed.options);
    launch = launched;
    return evaluate_weights(parsed.options, launch);
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    std::signal(SIGXFSZ, SIG_IGN);                  // a write beyond `ulimit -f` fails like one to a full disk
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a person may be reading a log file or a pipe
    LaunchInfo launch;
    const auto fail = [&](const Error& failure) {
        const Error error(failure.code(), sanitize(failure.what()));  // it may quote an untrusted file
        std::fflush(stdout);
        if (!launch.alone()) leave(launch, error);
        print_error("train_gpt: {}", error.what());
        return static_cast<int>(error.code());
    };
    try {
        allow_status(is_watched(isatty(STDOUT_FILENO) != 0, std::getenv));
        if (const std::optional<ExitCode> done = run_command({argv + 1, argv + argc}, launch))
            return static_cast<int>(printed(*done));
        launch = launch_environment();
        return static_cast<int>(run_program(argc, argv, launch));
    } catch (const Error& error) {
        return fail(error);
    } catch (const std::exception& error) {
        return fail({ExitCode::failure, error.what()});
    }
}
