// Sets up a run, and does the work between its steps.
#include "llmc/run/run.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/comm/agreement.h"
#include "llmc/data/loader.h"
#include "llmc/log/metrics.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/run/resume.h"
#include "llmc/train/trainer.h"

namespace llmc {

static int64_t last_step_of(const Options& options, const RunPosition& position) {
    if (position.watch.is_over(options.early_stop)) return position.step;
    const int64_t last = options.last_step();
    return position.decay.has_begun() ? std::min(position.decay.until, last) : last;
}

// The loader of this rank's batches, from the run's position on.
static std::unique_ptr<TrainLoader> loader_from(const RunPosition& position, const Options& o, const Inputs& inputs,
                                                const Comm& comm) {
    const int64_t first_batch = o.batches.tokens_until(position.data_step) / o.micro_step_tokens(comm.world());
    return std::make_unique<TrainLoader>(*inputs.train, *inputs.order, o.batch, o.seq, comm.rank(), comm.world(),
                                         first_batch, o.model.vocab, o.micro_steps, read_patience(o));
}

// Streams and size of the trace for --profile-steps; nothing without the flag.
template <class Real>
static std::optional<Profiler::Setup> profiler_setup(const Options& o, Trainer<Real>& trainer) {
    if (!o.profile_steps.any()) return std::nullopt;
    Profiler::Setup setup;
    setup.steps = o.profile_steps;
    setup.directory = o.out;
    // Ranges of a unit: forward, backward, two gathers and a reduction per micro-step; some more per step.
    setup.ranges_per_step = trainer.table().units().size() * (5 * static_cast<size_t>(o.micro_steps) + 6) + 64;
    setup.streams = {{"compute", trainer.stream()},
                     {"weights", trainer.weights().gather_stream()},
                     {"gradients", trainer.gradients().reduce_stream()},
                     {"state to the device", trainer.optimizer().ring().to_device()},
                     {"state to the host", trainer.optimizer().ring().to_host()},
                     {"residuals", trainer.model().offloaded().copies()}};
    return setup;
}

template <class Real>
Run<Real>::Run(const Options& options, const Inputs& inputs, const CardFacts& card, Ranks& ranks,
               RunDirectory& directory, const RunPosition& position, Trainer<Real>& trainer)
    : options_(options),
      ranks_(ranks),
      comm_(ranks.comm),
      directory_(directory),
      trainer_(trainer),
      position_(position),
      first_step_(position.step + 1),
      last_step_(last_step_of(options, position)),
      deadline_(deadline_after(options.max_minutes)),
      checkpoints_(options, inputs, trainer, directory, position_, [&ranks] { ranks.watchdog.alive(); }),
      stop_waits_for_(checkpoints_.enabled() ? "this step and its checkpoint" : "this step"),
      loader_(loader_from(position, options, inputs, comm_)),
      evaluation_(options, inputs, trainer, ranks.watchdog),
      reports_(options, {last_step_, card.peak_tflops, comm_.world(), options.log_every}, inputs,
               position.data_step - position.step, trainer.fp8(), comm_, directory),
      profiler_(comm_, profiler_setup(options, trainer)),
      decay_file_(trainer.config(), inputs.sources, directory) {
    begin_records(directory, trainer, options, *card.tuning, ranks, position);
    inputs.keep_tokenizer(directory);
}

template <class Real>
Run<Real>::~Run() = default;

template <class Real>
void Run<Real>::begin() {
    if (position_.step == 0 || std::exchange(position_.evaluation_due, false))
        if (due_now().any()) evaluate();
    // A signal prevents the first step; --max-minutes leaves time for one step.
    if (stop_ == StopReason::none) stop_ = agree({reason_to_stop(std::nullopt)}).stop;
}

// ---- a step ---------------------------------------------------------------------------------------------------------

template <class Real>
StepKind Run<Real>::begin_step() {
    const int64_t step = ++position_.step;
    position_.data_step++;
    ranks_.watchdog.begin_step(step);
    if (profiler_.begin_step(step)) interrupted_ = true;
    micro_steps_ = micro_steps_of(step);
    micro_step_ = 0;
    fingerprint_.clear();
    const Due due = due_now();
    return {.continues = !std::exchange(interrupted_, false),
            .count_losses = due.fp8_records,
            .micro_steps = micro_steps_,
            .length = static_cast<int>(options_.sequences.tokens_of(step)),
            .batch_changes = step > 1 && options_.batches.tokens_of(step) != options_.batches.tokens_of(step - 1)};
}

template <class Real>
MicroBatch Run<Real>::load_batch() {
    const ProfileRange range("load a batch");
    ranks_.watchdog.alive();  // one rank alone has no collectives, and a step of many micro-steps may take long
    const double asked = monotonic_seconds();
    const MicroBatch batch = loader_->next();  // its samples have been read; see reason_to_stop()
    data_seconds_ += monotonic_seconds() - asked;
    const int64_t first_sample = (int64_t{micro_step_++} * comm_.world() + comm_.rank()) * options_.batch;
    fingerprint_.add(batch.tokens, batch.targets, options_.batch, options_.seq, first_sample);
    return batch;
}

template <class Real>
void Run<Real>::end_step(const std::vector<Fp8Fallback>& fallbacks) {
    const int64_t step = position_.step;
    trainer_.submitted().data_ms = 1e3 * std::exchange(data_seconds_, 0);
    std::optional<StepRecord> before = wait_for_result(1);  // the previous step's; this one still runs
    agreed_ = agree(proposal(before));
    stop_ = agreed_.stop;
    reports_.add_facts(trainer_.submitted(), agreed_.batch_hash, agreed_.cards);
    if (step == first_step_ && fallbacks.empty() && !ends_fp8()) check_first_step();
    if (before && comm_.world() > 1) before->slowest = slowest_rank(rank_times_);
    if (before) reports_.report(*before);
    report_layers_that_left_fp8(fallbacks);
    end_profiled_step();
    if (stop_ != StopReason::none) report_steps(0);
    checkpoints_.advance(agreed_.writing);
    forget_decay_file();
    if (agreed_.decay != DecayFile::kNone) begin_decay(agreed_.decay);
    position_.evaluation_due = stop_ != StopReason::none;  // the resumed run evaluates instead
}

// Why this rank does not want to begin the next step. Waits until the step's data has been read, so that no rank fails
// within a step, where others would wait for it in a collective.
template <class Real>
StopReason Run<Real>::reason_to_stop(const Deadline& deadline) {
    const double asked = monotonic_seconds();
    if (position_.step < last_step_)
        unreadable_ = loader_->wait_for(micro_steps_of(position_.step + 1), [&] {
            ranks_.watchdog.alive();
            return stop_reason(deadline) == StopReason::none;
        });
    data_seconds_ += monotonic_seconds() - asked;
    return unreadable_.empty() ? stop_reason(deadline) : StopReason::unreadable_data;
}

// The values of this rank at the end of a step. `before`: the record of the step before, if there is one.
template <class Real>
typename Run<Real>::Agreement Run<Real>::proposal(const std::optional<StepRecord>& before) {
    Agreement mine;
    mine.stop = reason_to_stop(deadline_);
    mine.batch_hash = fingerprint_.value();
    mine.writing = checkpoints_.is_writing();
    mine.time_to_save = checkpoints_.is_time();
    if (!position_.decay.has_begun()) mine.decay = decay_file_.look(position_.step);
    if (before)
        mine.time = {static_cast<float>(before->ms), static_cast<float>(before->peers_ms),
                     static_cast<float>(before->data_ms)};
    return mine;
}

// The ranks exchange their values, such as requests to stop; all get the same result.
template <class Real>
typename Run<Real>::Agreement Run<Real>::agree(Agreement mine) {
    mine.cards = meter_.since_last();
    std::vector<Agreement> all(static_cast<size_t>(comm_.world()));
    comm_.host_all_gather(all.data(), &mine, sizeof mine);
    Agreement agreed;
    agreed.cards.joules = agreed.cards.watts = 0;
    rank_times_.clear();
    for (const Agreement& rank : all) {
        // The bytes come from another process.
        if (rank.stop < StopReason::none || rank.stop > StopReason::unreadable_data || rank.writing > 1 ||
            rank.time_to_save > 1 || rank.decay < DecayFile::kNone ||
            rank.decay > std::max<int64_t>(options_.schedule.steps - position_.step, 0))
            throw Error(ExitCode::communication, "rank {} does not say whether the run goes on", &rank - all.data());
        agreed.stop = std::max(agreed.stop, rank.stop);
        agreed.batch_hash += rank.batch_hash;
        agreed.writing |= rank.writing;
        agreed.time_to_save |= rank.time_to_save;
        agreed.decay = std::max(agreed.decay, rank.decay);
        agreed.cards.joules += rank.cards.joules;
        agreed.cards.watts += rank.cards.watts;
        agreed.cards.sm_clock_mhz = std::fmin(agreed.cards.sm_clock_mhz, rank.cards.sm_clock_mhz);
        agreed.cards.temperature_c = std::fmax(agreed.cards.temperature_c, rank.cards.temperature_c);
        rank_times_.push_back(rank.time);
    }
    return agreed;
}

// The rates of --decay-from from the next step on, and the last step where the decay ends. A checkpoint follows.
template <class Real>
void Run<Real>::begin_decay(int64_t steps) {
    const int64_t step = position_.step, until = step + steps;
    position_.decay = {step, until};
    decay(trainer_, options_, position_.decay);
    last_step_ = std::min(last_step_, until);
    agreed_.time_to_save = 1;
    reports_.end_at(last_step_);
    directory_.append({{"step", step}, {"decay_from", step}, {"decay_until", until}});
    if (comm_.is_main())
        print_line("step {}: the learning rate decays from here on, and the run ends with step {}", step, until);
}

template <class Real>
void Run<Real>::report_layers_that_left_fp8(const std::vector<Fp8Fallback>& fallbacks) {
    for (const Fp8Fallback& fallback : fallbacks)
        report_fallback(position_.step - 1, fallback, *trainer_.fp8(), comm_, directory_);
    if (ends_fp8() && comm_.is_main())
        print_line("step {}: all layers continue in BF16 (--fp8-until {})", position_.step, options_.text("fp8-until"));
}

template <class Real>
void Run<Real>::end_profiled_step() {
    profiler_.end_step();
    interrupted_ = profiler_.is_last(position_.step);
    if (!interrupted_) return;
    report_steps(0);
    profiler_.finish(position_.step);
}

template <class Real>
void Run<Real>::check_first_step() {
    require_fp8_products(trainer_.submitted().products, trainer_.expected_fp8_products(), options_.fp8_emulation);
    record_memory_outside(position_.step, ranks_.device, ranks_.libraries_to_come(options_), comm_, directory_);
}

// ---- between two steps ----------------------------------------------------------------------------------------------

template <class Real>
typename Run<Real>::Due Run<Real>::due_now() const {
    const int64_t step = position_.step;
    const bool last = step == last_step_, records = trainer_.fp8() && !options_.out.empty();
    const auto every = [step](int64_t interval) { return interval > 0 && step > 0 && step % interval == 0; };
    return {evaluation_.validates_after(step, last), evaluation_.samples_after(step, last),
            records && every(options_.fp8_log_every)};
}

template <class Real>
void Run<Real>::evaluate() {
    const Due due = due_now();
    report_steps(0);
    interrupted_ = true;
    const ProfileRange range("evaluate");
    if (due.validation && !validate()) {
        unreadable_ = evaluation_.unreadable();
        stop_ = agree({unreadable_.empty() ? StopReason::signal : StopReason::unreadable_data}).stop;
        position_.evaluation_due = true;  // the resumed run does all of this
        return;
    }
    if (due.sample) print_sample();
    if (due.fp8_records) record_fp8(position_.step, *trainer_.fp8(), trainer_.stream(), directory_);
}

// Validates, then lowers the learning rate (--plateau) or ends the run (--early-stop) if the loss does not improve.
// Returns false if a signal came meanwhile.
template <class Real>
bool Run<Real>::validate() {
    const int64_t step = position_.step;
    const std::optional<ValRecord> record = evaluation_.validate(step);
    if (!record) return false;
    reports_.report(*record);
    // The extra validation at the end of a stopped run does not count: after a resume it would count twice.
    if (record->losses.empty() || step % options_.val_every != 0) return true;
    const ValidationWatch::Verdict verdict =
        position_.watch.observe(record->losses[0].loss, options_.plateau, options_.early_stop);
    report_verdict(step, verdict, position_.watch, directory_, comm_);
    if (verdict == ValidationWatch::Verdict::lower_rate) trainer_.optimizer().scale_rate(position_.watch.rate_factor());
    if (verdict == ValidationWatch::Verdict::stop) last_step_ = step;
    return true;
}

template <class Real>
void Run<Real>::print_sample() {
    const Sample sample = evaluation_.print_sample(position_.step, deadline_);
    directory_.append({{"step", position_.step}, {"sample", sample.text}});
    if (sample.cut_short && position_.step < last_step_) stop_ = agree({stop_reason(deadline_)}).stop;
}

template <class Real>
void Run<Real>::save() {
    const StopWaitsFor stop_waits_for("this checkpoint, the next step and its checkpoint");
    report_steps(0);
    ranks_.watchdog.begin(Watchdog::Phase::save);
    checkpoints_.save();
    interrupted_ = true;
}

// ---- the end --------------------------------------------------------------------------------------------------------

template <class Real>
ExitCode Run<Real>::finish() {
    // The order matters: numbers first, because they may end the run with an error; then the checkpoint, from which the
    // run can continue; then the weights; and last, any error of the checkpoint.
    const int64_t step = position_.step;
    const StopWaitsFor stop_waits_for(stop_ == StopReason::none ? "the last files of the run" : "the last checkpoint");
    report_steps(0);
    reports_.print_bench();
    if (comm_.is_main() && stop_ != StopReason::none) print_line("stopping after step {}: {}", step, stop_name(stop_));
    profiler_.finish(step);  // if the run stopped before the last profiled step

    ranks_.watchdog.begin(Watchdog::Phase::save);
    const Failure unsaved = checkpoints_.finish();
    ranks_.watchdog.alive();
    forget_decay_file();
    if (!options_.out.empty()) {
        record_memory(step, trainer_.memory(), comm_, directory_);
        if (stop_ == StopReason::none || !checkpoints_.enabled()) {
            const std::vector<std::string> names = {"model.safetensors", "config.json"};
            directory_.note_files(names, false);
            save_weights(trainer_, directory_.active() ? directory_.file(names[0]) : "", options_.end_token);
            directory_.note_files(names, true);
        }
    }
    synchronize_device();  // throws if something failed after the last result
    evaluation_.print_floor();
    if (unsaved) throw Error(unsaved.code, unsaved.text);
    checkpoints_.wait_for_commands();

    const Failure failure =
        first_failure(comm_, {unreadable_.empty() ? ExitCode::ok : ExitCode::bad_data, unreadable_});
    if (comm_.is_main() && failure) print_error("train_gpt: {}", sanitize(failure.text));
    const RunEnd end{first_step_,
                     step,
                     stop_,
                     checkpoints_.enabled(),
                     seconds_since_start(),
                     reports_.results(),
                     position_.decay.has_begun() && step == position_.decay.until};
    if (comm_.is_main()) print_end(options_, end);
    return exit_code_of(end);
}

template class Run<float>;
template class Run<bf16>;

}  // namespace llmc
