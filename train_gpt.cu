// train_gpt: pretrains a GPT from token shards. main() turns flags into a run; train() is the story of the run: set up,
// then step after step, then the final weights.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "llmc/base/json.h"
#include "llmc/comm/connect.h"
#include "llmc/commands/check.h"
#include "llmc/commands/command.h"
#include "llmc/commands/plan.h"
#include "llmc/data/loader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/flags/trainer_config.h"
#include "llmc/log/fingerprint.h"
#include "llmc/log/profile.h"
#include "llmc/log/records.h"
#include "llmc/plan/gpu_table.h"
#include "llmc/run/bench.h"
#include "llmc/run/between_steps.h"
#include "llmc/run/checkpoints.h"
#include "llmc/run/ranks.h"
#include "llmc/run/signals.h"
#include "llmc/run/start.h"
#include "llmc/run/step_reports.h"
#include "llmc/run/summary.h"
#include "llmc/train/weights.h"

using namespace llmc;

namespace {

// ---- the training loop ---------------------------------------------------------------------------------------------

template <class Real>
ExitCode train(const Options& o, Admission& admission, const Inputs& inputs, Ranks& ranks, RunDirectory& directory,
               std::optional<Resumed>& resumed) {
    const Comm& comm = ranks.comm;
    Trainer<Real> trainer(trainer_config(o, admission.products), comm);
    trainer.allocate();
    check_communicators(o, trainer, ranks, admission);
    RunPosition position = start(trainer, o, ranks, resumed);
    Checkpoints<Real> checkpoints(o, *inputs.train, trainer, directory, position);
    enter_directory(directory, trainer, o, admission.summary, ranks, position);
    inputs.keep_tokenizer(directory);

    const int64_t micro_batch = int64_t{o.batch} * o.seq * comm.world();  // tokens of all ranks
    TrainLoader loader(*inputs.train, o.batch, o.seq, comm.rank(), comm.world(), o.seed,
                       o.batches.tokens_until(position.data_step) / micro_batch, o.model_config.vocab);
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    int64_t last_step = o.stop_after > 0 ? std::min(o.stop_after, o.max_steps) : o.max_steps;
    if (position.watch.is_over(o.early_stop)) last_step = position.step;
    Evaluation<Real> evaluation(o, inputs, trainer, ranks.watchdog);
    StepReports reports(o, {last_step, peak_tflops(ranks.device, o.precision, admission), comm.world(), o.log_every},
                        {inputs.train->samples(o.seq) * o.seq, position.data_step - position.step}, trainer.fp8(), comm,
                        directory);
    EnergyMeter meter;
    const Deadline deadline = deadline_after(o.max_minutes);
    StopReason stop = StopReason::none;
    // Whether anything came between two steps. A stop leaves the rest to who goes on from here.
    const auto look = [&](int64_t step) {
        const Look done =
            look_at_model(o, step, step == last_step, trainer, evaluation, reports, directory, position.watch);
        if (done == Look::told_to_stop) stop = StopReason::signal, position.reports_due = true;
        if (done == Look::stops_early) last_step = step;
        if (done == Look::cut_short && step < last_step) stop = agree({stop_reason(deadline)}, meter, comm).stop;
        return done != Look::none;
    };

    Profiler profiler(comm, profiler_setup(o, trainer));
    int64_t& step = position.step;
    const int64_t first_step = step + 1;
    bool interrupted = true;  // other work came between two steps
    if (step == 0 || std::exchange(position.reports_due, false)) look(step);
    stop = agree({stop_reason(std::nullopt)}, meter, comm).stop;  // a signal; a limit leaves time for a step
    while (step < last_step && stop == StopReason::none) {
        step++, position.data_step++;
        ranks.watchdog.begin_step(step);
        interrupted |= profiler.begin_step(step);
        const int micro_steps = static_cast<int>(o.batches.tokens_of(step) / micro_batch);
        trainer.begin_step({.continues = !interrupted,
                            .count_losses = records_fp8_after(step, o, trainer),
                            .probes = probes_fp8_in(step, o, trainer),
                            .micro_steps = micro_steps,
                            .length = static_cast<int>(o.sequences.tokens_of(step))});
        BatchFingerprint batch;
        for (int m = 0; m < micro_steps; m++) {
            {
                const ProfileRange range("load a batch");
                loader.next(tokens.data(), targets.data());
                batch.add(tokens.data(), targets.data(), o.batch, o.seq,
                          (int64_t{m} * comm.world() + comm.rank()) * o.batch);
            }
            trainer.micro_step(tokens.data(), targets.data());
        }
        const std::vector<Fp8Fallback> fallbacks = trainer.finish_step();
        const StepAgreement agreed =
            agree({stop_reason(deadline), batch.value(), checkpoints.is_writing(), checkpoints.is_time()}, meter, comm);
        stop = agreed.stop;
        reports.add_facts(trainer.submitted(), agreed);
        if (step == first_step && fallbacks.empty()) {
            require_fp8_products(trainer.products(), trainer.expected_fp8_products(), o.fp8_emulation);
            record_memory_outside(step, ranks.device, ranks.libraries_to_come(o), comm, directory);
        }
        report_all_but(reports, trainer, 1);  // the step before; this one is still running
        for (const Fp8Fallback& fallback : fallbacks)
            report_fallback(step - 1, fallback, *trainer.fp8(), comm, directory);
        profiler.end_step();
        const bool profiled = profiler.is_last(step);
        if (profiled || stop != StopReason::none) report_all_but(reports, trainer, 0);
        if (profiled) finish_profile(profiler, step, comm, directory);
        checkpoints.advance(agreed);
        position.reports_due = stop != StopReason::none;
        if (position.reports_due) continue;
        interrupted = look(step) || profiled;
        if (!checkpoints.is_due(agreed)) continue;
        report_all_but(reports, trainer, 0);
        ranks.watchdog.begin(Watchdog::Phase::save);
        checkpoints.save();
        interrupted = true;
    }
    report_all_but(reports, trainer, 0);
    reports.print_bench();
    if (comm.is_main()) print_stop(step, stop);
    finish_profile(profiler, step, comm, directory);  // of a run that was stopped before the last profiled step
    ranks.watchdog.begin(Watchdog::Phase::save);
    const Failure unsaved = checkpoints.finish();
    if (!o.out.empty()) record_memory(step, trainer.memory(), comm, directory);
    if (!o.out.empty() && (stop == StopReason::none || !checkpoints.enabled()))
        save_weights(trainer, directory.active() ? directory.file("model.safetensors") : "", o.end_token);
    synchronize_device();  // what fails behind the last result fails the run
    evaluation.print_floor();
    if (unsaved) throw Error(unsaved.code, unsaved.text);
    const RunEnd end{first_step, step, stop, checkpoints.enabled(), seconds_since_start(), reports.results()};
    if (comm.is_main()) print_end(o, end);
    return exit_code_of(end);
}

// ---- from flags to a run -------------------------------------------------------------------------------------------

ExitCode print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    return ExitCode::ok;
}

ExitCode run_program(int argc, char** argv, const LaunchInfo& launch) {
    ParsedOptions parsed = parse_options(argc, argv);
    if (parsed.text) return print(*parsed.text);
    Options& o = parsed.options;
    if (o.bench) only_bench(o);
    install_signal_handlers();
    Inputs inputs(o);
    const int zero = o.zero;
    Ranks ranks(o, launch);
    const bool planning = o.dry_run || o.estimate_scaling || o.print_config;  // works on a machine without a GPU
    planning ? ranks.plan(o) : ranks.connect(o, launch);
    ResolveInputs surroundings;
    inputs.describe(surroundings);
    ranks.describe(surroundings);
    resolve(o, surroundings);
    inputs.check(o);
    if (o.print_config) return print(config_json(o) + "\n");
    if (planning) return plan_run(o, zero);
    if (!inputs.train && o.bench) inputs.train = std::make_unique<ShardSet>(bench_tokens(o));
    const StagePlan plan = plan_rank(o, ranks.comm);  // or says why there is no such run
    const Comm& comm = ranks.comm;
    comm.require_equal("configuration", config_json(o));
    comm.require_equal("command line", collective_flags(o));
    check_memory(plan.memory, ranks.libraries_to_come(o), ranks.device.free_memory, ranks.device.name);
    if (o.checking) return check_cards(o, ranks);

    RunDirectory directory(comm.is_main() ? o.out : "");
    std::optional<Resumed> resumed = find_checkpoint(o, *inputs.train, ranks);
    Admission admission = admit(o, ranks, resumed ? &*resumed : nullptr);
    open_directory(directory, o, resumed);
    if (directory.active() && !admission.findings.is_null())
        write_file(directory.file("check.json"), json_text(admission.findings, 1) + "\n");
    const RunOutlook outlook{surroundings.train_tokens, resumed ? resumed->position.step + 1 : 1,
                             predicted_seconds(o, plan, comm, ranks.device)};
    if (comm.is_main()) std::fputs(describe_start(o, ranks, outlook).c_str(), stdout);
    ExitCode code = ExitCode::failure;
    try {
        code = o.precision == "fp32" ? train<float>(o, admission, inputs, ranks, directory, resumed)
                                     : train<bf16>(o, admission, inputs, ranks, directory, resumed);
    } catch (const Error& error) {
        ranks.watchdog.report_loss(error);
        throw;
    }
    ranks.watchdog.stop();
    comm.finish();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a person may be reading a log file or a pipe
    LaunchInfo launch;
    const auto fail = [&](const Error& failure) {
        const Error error(failure.code(), sanitize(failure.what()));  // it may quote a file that nobody has checked
        std::fflush(stdout);
        if (!launch.alone()) leave(launch, error);
        std::fprintf(stderr, "train_gpt: %s\n", error.what());
        return static_cast<int>(error.code());
    };
    try {
        if (const std::optional<ExitCode> done = run_command({argv + 1, argv + argc}, launch))
            return static_cast<int>(*done);
        launch = launch_environment();
        return static_cast<int>(run_program(argc, argv, launch));
    } catch (const Error& error) {
        return fail(error);
    } catch (const std::exception& error) {
        return fail({ExitCode::failure, error.what()});
    }
}
