// train_gpt: pretrains a GPT from token shards. main() turns flags into a run; train() is the story of the run: set up,
// then step after step, then the final weights.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "llmc/comm/connect.h"
#include "llmc/commands/plan.h"
#include "llmc/data/loader.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/fingerprint.h"
#include "llmc/run/gpu_table.h"
#include "llmc/run/profile.h"
#include "llmc/run/ranks.h"
#include "llmc/run/records.h"
#include "llmc/run/signals.h"
#include "llmc/run/step_reports.h"
#include "llmc/run/trainer_config.h"
#include "llmc/train/hf_weights.h"

using namespace llmc;

namespace {

// ---- the training loop ---------------------------------------------------------------------------------------------

template <class Real>
ExitCode train(const Options& o, const Inputs& inputs, Ranks& ranks, RunDirectory& directory) {
    const Comm& comm = ranks.comm;
    Trainer<Real> trainer(trainer_config(o), comm);
    trainer.allocate();
    if (o.init_from.empty())
        trainer.initialize(o.seed);
    else
        load_weights(trainer, o.init_from);
    if (!o.out.empty()) {  // on every rank: all take part
        const std::string weights = fingerprint_text(weights_fingerprint(trainer.weights(), trainer.stream()));
        if (directory.active()) directory.write_run_json(o, {comm.world(), ranks.device.name, weights});
    }

    TrainLoader loader(*inputs.train, o.batch, o.seq, o.micro_steps, comm.rank(), comm.world(), o.seed, 0,
                       o.model_config.vocab);
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    const int64_t last_step = o.stop_after > 0 ? std::min(o.stop_after, o.max_steps) : o.max_steps;
    Evaluation<Real> evaluation(o, inputs, trainer, ranks.watchdog);
    StepReports reports(o,
                        {last_step, static_cast<double>(o.total_batch), o.model_config.flops_per_token(o.seq),
                         peak_tflops(ranks.device, o.precision), comm.world()},
                        trainer.fp8(), comm, directory);
    const auto report_all_but = [&](int leave) {
        const ProfileRange range("wait for results");
        while (const std::optional<StepResult> result = trainer.take_result(leave)) reports.report(*result);
    };
    const auto validate_and_sample = [&](int64_t step, bool last) {
        const bool validates = evaluation.validates_after(step, last), samples = evaluation.samples_after(step, last);
        if (!validates && !samples) return false;
        report_all_but(0);
        const ProfileRange range("validate and sample");
        if (validates) reports.report(evaluation.validate(step));
        if (samples) evaluation.print_sample(step);
        return true;
    };

    Profiler profiler(comm, profiler_setup(o, trainer));
    std::optional<std::chrono::steady_clock::time_point> deadline;
    if (o.max_minutes > 0)
        deadline = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(static_cast<int64_t>(60e3 * std::min(o.max_minutes, 1e7)));
    bool interrupted = validate_and_sample(0, false);  // other work came between two steps
    int64_t step = 0;
    StopReason stop = StopReason::none;
    while (step < last_step && stop == StopReason::none) {
        step++;
        ranks.watchdog.begin_step(step);
        interrupted |= profiler.begin_step(step);
        const bool fp8_recorded = trainer.fp8() && !o.out.empty() && o.fp8_log_every > 0 && step % o.fp8_log_every == 0;
        trainer.begin_step(!interrupted, fp8_recorded);
        BatchFingerprint batch;
        for (int m = 0; m < o.micro_steps; m++) {
            {
                const ProfileRange range("load a batch");
                loader.next(tokens.data(), targets.data());
                batch.add(tokens.data(), targets.data(), o.batch, o.seq,
                          (int64_t{m} * comm.world() + comm.rank()) * o.batch);
            }
            trainer.micro_step(tokens.data(), targets.data());
        }
        for (const Fp8Fallback& fallback : trainer.finish_step())
            report_fallback(step - 1, fallback, *trainer.fp8(), comm, directory);

        const StepAgreement agreed = agree(stop_reason(deadline), batch.value(), comm);
        stop = agreed.stop;
        const Products& products = trainer.products();
        reports.expect(step, products, agreed.batch_hash);
        if (step == 1) {
            require_fp8_products(products, trainer.expected_fp8_products(), o.fp8_emulation);
            record_memory_outside(step, ranks.device, ranks.libraries_to_come(o), comm, directory);
        }
        report_all_but(1);  // the step before; this one is still running
        profiler.end_step();
        const bool profiled = profiler.is_last(step);
        if (profiled || stop != StopReason::none) report_all_but(0);
        if (profiled) finish_profile(profiler, step, comm, directory);
        if (stop != StopReason::none) continue;
        interrupted = validate_and_sample(step, step == last_step) || profiled;
        if (fp8_recorded) record_fp8(step, *trainer.fp8(), comm, trainer.stream(), directory);
    }
    report_all_but(0);
    if (stop != StopReason::none && comm.is_main())
        std::printf("stopping after step %lld: %s\n", static_cast<long long>(step), stop_text(stop));
    finish_profile(profiler, step, comm, directory);  // of a run that was stopped before the last profiled step
    if (!o.out.empty()) {
        record_memory(step, trainer.memory(), comm, directory);
        ranks.watchdog.begin(Watchdog::Phase::save);
        save_weights(trainer, directory.active() ? directory.file("model.safetensors") : "");
        if (comm.is_main()) std::printf("weights written to %s\n", directory.file("model.safetensors").c_str());
    }
    synchronize_device();  // what fails behind the last result fails the run
    evaluation.print_floor();
    return stop == StopReason::none ? ExitCode::ok : ExitCode::stopped;
}

// ---- from flags to a run -------------------------------------------------------------------------------------------

ExitCode run_program(int argc, char** argv, const LaunchInfo& launch) {
    ParsedOptions parsed = parse_options(argc, argv);
    if (parsed.text) {
        std::fputs(parsed.text->c_str(), stdout);
        return ExitCode::ok;
    }
    Options& o = parsed.options;
    const Inputs inputs(o);
    const int zero = o.zero;
    Ranks ranks(o, launch);
    const bool planning = o.dry_run || o.estimate_scaling || o.print_config;  // works on a machine without a GPU
    if (planning)
        ranks.plan(o);
    else
        ranks.connect(o, launch);
    ResolveInputs surroundings;
    inputs.describe(surroundings);
    ranks.describe(surroundings);
    resolve(o, surroundings);
    inputs.check_vocabulary(o.model_config.vocab);
    if (o.print_config) {
        std::printf("%s\n", config_json(o).c_str());
        return ExitCode::ok;
    }
    if (planning) {
        plan_run(o, zero);
        return ExitCode::ok;
    }
    const MemoryByKind memory = plan_rank(o, ranks.comm).memory;  // or says why there is no such run
    if (!inputs.train)
        throw Error(ExitCode::bad_flags, "no training data: give token shards with --train GLOB (see --help)");
    const Comm& comm = ranks.comm;
    comm.require_equal("configuration", config_json(o));
    comm.require_equal("command line", "--profile-steps " + o.profile_steps);
    if (comm.is_main())
        for (const std::string& note : o.notes) std::printf("note: %s\n", note.c_str());
    check_memory(memory, ranks.libraries_to_come(o), ranks.device.free_memory, ranks.device.name);

    RunDirectory directory(comm.is_main() ? o.out : "", o.overwrite);
    install_signal_handlers();
    if (ranks.comm.is_main()) std::fputs(describe_start(o, ranks).c_str(), stdout);
    const ExitCode code =
        o.precision == "fp32" ? train<float>(o, inputs, ranks, directory) : train<bf16>(o, inputs, ranks, directory);
    ranks.watchdog.stop();
    comm.finish();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    LaunchInfo launch;
    try {
        launch = launch_environment();
        return static_cast<int>(run_program(argc, argv, launch));
    } catch (const Error& error) {
        std::fflush(stdout);
        if (!launch.alone()) leave(launch, error);
        std::fprintf(stderr, "train_gpt: %s\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "train_gpt: %s\n", error.what());
        return static_cast<int>(ExitCode::failure);
    }
}
