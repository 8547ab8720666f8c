// Builds manifests, and starts and reports saves.
#include "llmc/run/checkpoints.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/clock.h"
#include "llmc/base/files.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/saver.h"
#include "llmc/flags/options.h"
#include "llmc/log/provenance.h"
#include "llmc/model/model_file.h"
#include "llmc/run/inputs.h"
#include "llmc/run/resume.h"
#include "llmc/train/staging.h"
#include "llmc/train/trainer.h"

namespace llmc {

static std::vector<StateSlice> without_values(const std::vector<DeviceSlice>& state) {
    std::vector<StateSlice> slices;
    for (const DeviceSlice& part : state) slices.push_back(part.slice);
    return slices;
}

// Bytes of the checkpoints that --overwrite is going to delete.
static uint64_t bytes_of_earlier_run(const std::string& directory) {
    uint64_t bytes = 0;
    for (const FoundCheckpoint& found : find_checkpoints(directory))
        for (const std::string& name : names_in(found.path)) {
            std::error_code unknown;
            const auto size = std::filesystem::file_size(found.path + "/" + name, unknown);
            if (!unknown) bytes += size;
        }
    return bytes;
}

template <class Real>
Checkpoints<Real>::Checkpoints(const Options& options, const Inputs& inputs, Trainer<Real>& trainer,
                               RunDirectory& directory, const RunPosition& position, const std::function<void()>& alive)
    : options_(options),
      inputs_(inputs),
      trainer_(trainer),
      directory_(directory),
      position_(position),
      command_(options.after_checkpoint),
      alive_(alive),
      last_begin_(monotonic_seconds()),
      last_saved_(position.saved) {
    if (options.out.empty() || (options.checkpoint_every == 0 && options.checkpoint_minutes == 0)) return;
    const Comm& comm = trainer.comm();
    const uint64_t needed = checkpoint_bytes(comm, without_values(trainer.state_slices()));
    if (comm.is_main()) {
        const uint64_t room = free_bytes(directory.checkpoints()) +
                              (options.overwrite ? bytes_of_earlier_run(directory.checkpoints()) : 0);
        if (room < needed)
            throw Error(ExitCode::no_resources,
                        "{}: a checkpoint takes {}, and {} are free; free space there, choose another --out, or save "
                        "none with -n 0 --checkpoint-minutes 0",
                        directory.path(), format_bytes(needed), format_bytes(room));
        const uint64_t at_once = options.keep > 0 ? static_cast<uint64_t>(options.keep) + 1 : 1;
        if (room / at_once < needed)
            print_line("note: {} has room for {} of {}; --keep {} and the one being written need {}", directory.path(),
                       plural(static_cast<int64_t>(room / needed), "checkpoint"), format_bytes(needed), options.keep,
                       at_once);
    }
    // Leave a fifth of the host memory for everything else.
    const size_t memory = available_host_memory() / 5 * 4 / static_cast<size_t>(comm.local_world());
    staging_ = std::make_unique<Staging>(trainer.state_slices(), options.checkpoint_local, memory);
    if (!staging_->note().empty())
        print_line("note: rank {}: {}: its part is written while training waits; --checkpoint-local may help",
                   comm.rank(), staging_->note());
    saver_ = std::make_unique<CheckpointSaver>(comm, options.out + "/checkpoints",
                                               CheckpointRetention{options.keep, options.keep_every}, last_saved_);
    *facts_ = inputs.facts(options);
}

template <class Real>
Checkpoints<Real>::~Checkpoints() = default;

template <class Real>
bool Checkpoints<Real>::is_writing() const {
    return saver_ && saver_->is_working();
}

template <class Real>
bool Checkpoints<Real>::is_time() const {
    if (!saver_ || options_.checkpoint_minutes == 0 || !trainer_.comm().is_main()) return false;
    return monotonic_seconds() - last_begin_ > 60 * options_.checkpoint_minutes;
}

template <class Real>
void Checkpoints<Real>::advance(bool some_rank_is_writing) {
    command_.look();
    if (!saver_ || !saver_->is_active() || some_rank_is_writing) return;
    if (const std::optional<SaveOutcome> outcome = saver_->advance()) report(*outcome, false);
}

template <class Real>
Manifest Checkpoints<Real>::manifest() {
    Manifest m;
    m.run_id = position_.run_id;
    m.step = position_.step;
    m.world = trainer_.comm().world();
    m.zero = trainer_.layout().stage();
    *m.config = parse_json(config_json(options_));
    *m.versions = versions_json();
    RunPosition position = position_;
    position.files = directory_.sizes();
    *m.run = position_json(position, options_, inputs_, *facts_);
    (*m.run)["kernels"] = options_.kernels_in_use;
    if (options_.model.architecture != &kGpt2) (*m.run)["model"] = model_json(options_.model);
    (*m.run)["products"] = trainer_.config().products;
    *m.state = state_json(trainer_.read_state());
    m.tensors = trainer_.state_tensors();
    m.chunk_bytes = kChunkBytes;
    return m;
}

template <class Real>
void Checkpoints<Real>::begin(bool last) {
    last_begin_ = monotonic_seconds();
    SaveJob job;
    job.manifest = manifest();
    job.slices = staging_->slices();
    job.in_background = staging_->is_apart();
    job.failure = failure_of([&] { job.values = staging_->take(trainer_.stream()); });
    job.values = [this, in_background = job.in_background, values = std::move(job.values)](auto... part) {
        if (waits_ || !in_background) alive_();  // every piece that is written is a sign of life
        return values(part...);
    };
    job.checksums = staging_->checksums();
    job.before_manifest = directory_.synchronizer();
    job.read = command_.steps();
    if (const std::optional<SaveOutcome> outcome = saver_->begin(std::move(job))) report(*outcome, last);
}

// Waits for the save that is active, if there is one.
template <class Real>
void Checkpoints<Real>::wait(bool last) {
    waits_ = true;
    const std::optional<SaveOutcome> outcome = saver_->wait();
    waits_ = false;
    if (outcome) report(*outcome, last);
}

template <class Real>
void Checkpoints<Real>::save() {
    if (position_.step == last_saved_) return;
    const int64_t milestones = options_.keep_every;
    if (milestones > 0 && position_.step % milestones == 0) wait(false);  // --keep promises this checkpoint
    if (!saver_->is_active()) return begin(false);
    last_begin_ = monotonic_seconds();
    if (trainer_.comm().is_main())
        print_line("step {}: no checkpoint, because the last one is still being written", position_.step);
}

template <class Real>
Failure Checkpoints<Real>::finish() {
    if (!saver_) return {};
    wait(false);
    if (position_.step == last_saved_ || position_.step == 0) return {};
    const Failure failure = failure_of([&] {
        begin(true);
        wait(true);
    });
    if (failure.code == ExitCode::communication) throw Error(failure.code, failure.text);
    return failure;
}

template <class Real>
void Checkpoints<Real>::wait_for_commands() {
    command_.wait([this](bool runs) {
        alive_();  // one rank alone has no collectives
        return trainer_.comm().host_max(runs) > 0;
    });
}

template <class Real>
void Checkpoints<Real>::report(const SaveOutcome& outcome, bool last) {
    const bool is_main = trainer_.comm().is_main();
    if (outcome.problem.empty()) {
        last_saved_ = outcome.step;
        directory_.note_checkpoint(outcome.step);
        if (is_main)
            print_line("checkpoint of step {} written to {} ({} in {:.2f} s)", outcome.step, outcome.path,
                       format_bytes(outcome.bytes), outcome.seconds);
        if (is_main) command_.start(outcome.step, outcome.path);
        if (!outcome.prune_problem.empty())
            print_error("train_gpt: an old checkpoint could not be deleted: {}", outcome.prune_problem);
        return;
    }
    const std::string problem =
        fmt::format("the checkpoint of step {} could not be written: {}", outcome.step, outcome.problem);
    if (last || options_.on_save_error == OnSaveError::stop) throw Error(outcome.code, problem);
    if (is_main)
        print_error("train_gpt: {}\ntrain_gpt: training continues; earlier checkpoints are unchanged", problem);
}

template class Checkpoints<float>;
template class Checkpoints<bf16>;

}  // namespace llmc
