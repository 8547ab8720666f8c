// The phases of a save: writing in a thread, agreement of the ranks, commit and pruning.
// build: threads
#include "llmc/checkpoint/saver.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "llmc/base/clock.h"

namespace llmc {

uint64_t checkpoint_bytes(const Comm& comm, const std::vector<StateSlice>& slices) {
    uint64_t mine = 0;
    for (const StateSlice& slice : slices) mine += slice.bytes();
    return sum_over_ranks(comm, std::vector{mine})[0];
}

CheckpointSaver::CheckpointSaver(const Comm& comm, const std::string& directory, const CheckpointRetention& retention,
                                 int64_t in_use, FileCalls& calls)
    : comm_(comm), directory_(directory), retention_(retention), in_use_(in_use), calls_(calls) {}

CheckpointSaver::~CheckpointSaver() { join(); }

void CheckpointSaver::check_room(uint64_t needed) const {
    const uint64_t room = free_bytes(directory_);
    if (room >= needed) return;
    throw Error(ExitCode::no_resources, "{}: a checkpoint takes {}, and {} are free; free space there, or see --keep",
                directory_, format_bytes(needed), format_bytes(room));
}

// Does the `work` of a phase, in the thread or here. advance() finds the failure, also that of starting the thread.
void CheckpointSaver::start(bool in_background, const std::function<void()>& work) {
    const auto run = [this, work] {
        failure_ = failure_of(work);
        working_ = false;
    };
    working_ = true;
    if (!in_background) return run();
    try {
        thread_ = std::thread(run);
    } catch (const std::system_error& error) {
        failure_ = {ExitCode::no_resources, fmt::format("cannot start a thread that saves: {}", error.what())};
        working_ = false;
    }
}

std::optional<SaveOutcome> CheckpointSaver::begin(SaveJob job) {
    if (is_active()) throw Error(ExitCode::failure, "a save was started while another one was active");
    job_ = std::move(job);
    began_ = monotonic_seconds();
    const int64_t step = job_.manifest.step;
    const uint64_t needed = checkpoint_bytes(comm_, job_.slices);
    failure_ = failure_of([&] {
        if (job_.failure) throw Error(job_.failure.code, job_.failure.text);
        if (!comm_.is_main()) return;
        remove_unfinished(calls_, directory_);
        check_room(needed);
        begin_checkpoint(calls_, directory_, step);
    });
    if (const Failure failure = first_failure(comm_, failure_)) return outcome(failure);
    phase_ = Phase::writing;
    start(job_.in_background, [this, step] {
        file_ = write_state_file(calls_, unfinished_path(directory_, step), comm_.rank(), job_.slices, job_.values);
        if (!job_.checksums.empty() && job_.checksums != file_.checksums)
            throw Error(ExitCode::checkpoint, file_.name + ": its values changed while they were copied");
    });
    return std::nullopt;
}

std::optional<SaveOutcome> CheckpointSaver::advance() {
    join();
    if (phase_ == Phase::writing) return end_of_writing();
    if (phase_ == Phase::committing) return end_of_commit();
    return std::nullopt;
}

std::optional<SaveOutcome> CheckpointSaver::wait() {
    while (is_active())
        if (std::optional<SaveOutcome> outcome = advance()) return outcome;
    return std::nullopt;
}

std::optional<SaveOutcome> CheckpointSaver::end_of_writing() {
    const int64_t step = job_.manifest.step;
    if (const Failure failure = first_failure(comm_, failure_)) {
        clean_up(step);
        return outcome(failure);
    }
    for (const std::string& text : gather_texts(comm_, json_text(state_file_json(file_))))
        add_state_file(job_.manifest, unfinished_path(directory_, step), parse_json(text));
    phase_ = Phase::committing;
    if (!comm_.is_main()) return std::nullopt;
    prune_problem_.clear();
    start(true, [this, step] {
        if (job_.before_manifest) job_.before_manifest();
        commit_checkpoint(calls_, directory_, step, manifest_text(job_.manifest));
        // The new checkpoint is complete even if pruning fails.
        prune_problem_ =
            failure_of([&] { prune_checkpoints(calls_, directory_, retention_, in_use_, job_.read); }).text;
    });
    return std::nullopt;
}

// If this fails, the next save removes the remains.
void CheckpointSaver::clean_up(int64_t step) {
    if (comm_.is_main()) failure_of([&] { abort_checkpoint(calls_, directory_, step); });
}

SaveOutcome CheckpointSaver::end_of_commit() {
    const Failure failure = first_failure(comm_, comm_.is_main() ? failure_ : Failure{});
    if (failure) clean_up(job_.manifest.step);
    SaveOutcome done = outcome(failure);
    done.prune_problem = prune_problem_;
    return done;
}

SaveOutcome CheckpointSaver::outcome(const Failure& failure) {
    SaveOutcome done;
    done.step = job_.manifest.step;
    done.path = checkpoint_path(directory_, done.step);
    done.problem = failure.text;
    done.code = failure.code;
    done.bytes = job_.manifest.bytes();
    done.seconds = monotonic_seconds() - began_;
    job_ = {};
    phase_ = Phase::idle;
    return done;
}

}  // namespace llmc
