// Ending a run before its last step: by signals, by --max-minutes, and by a file that asks for the decay of the
// learning rate to begin now.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace llmc {

class Comm;
class RunDirectory;
struct TrainerConfig;
struct TrainSources;

// ---- signals --------------------------------------------------------------------------------------------------------
// SIGINT, SIGTERM, SIGHUP (a closed terminal), SIGUSR1 and SIGUSR2 (Slurm can send one of them before a time limit) ask
// for a clean stop after the current step; one rank that gets a signal is enough. A second signal ends the process
// immediately with the exit code that shells expect (128 + its number). Within two seconds this needs two SIGINTs,
// because launchers and batch systems may deliver one order as two signals.
//
// SIGPIPE and SIGXFSZ are ignored, so that the writing call fails instead of the process. A run whose output nobody
// reads continues, and a file above the limit of `ulimit -f` is reported with its name.

void install_signal_handlers();

// While this object exists, Ctrl-C answers "stopping after WORK"; otherwise "stopping after this step".
class StopWaitsFor {
public:
    explicit StopWaitsFor(const char* work);
    ~StopWaitsFor();
    StopWaitsFor(StopWaitsFor&&) = delete;

private:
    const char* const before_;
};

bool stop_requested();
std::string stop_signal_name();  // the first signal that asked for a stop: "SIGTERM"; "none"

// ---- stopping between steps and within long work --------------------------------------------------------------------

// Why a run ends before its last step. Of several reasons the last in this list counts.
enum class StopReason : int64_t { none, out_of_time, signal, unreadable_data };
// Time limit of monotonic_seconds(), or nothing.
using Deadline = std::optional<double>;
Deadline deadline_after(double minutes);  // 0 means no limit
// Why this rank wants to stop now.
StopReason stop_reason(const Deadline& deadline);
std::string stop_name(StopReason reason);  // "SIGTERM", "--max-minutes reached"

// Asks between pieces of work (a batch of a validation, a token of a sample) if a signal has told some rank to stop, or
// a rank's deadline has passed. Asking is a collective, so several ranks ask about once a second, in an interval that
// they agree on. One rank asks after every piece.
class StopPoll {
public:
    explicit StopPoll(const Comm& comm, const Deadline& deadline = {});

    // Every rank calls it before each piece. Returns true on all ranks if the work should end here. `mine`: this rank
    // has a reason of its own.
    bool operator()(bool mine = false);

private:
    const Comm& comm_;
    const Deadline deadline_;
    double last_;
    int64_t interval_ = 1, calls_left_ = 0;
};

// ---- "decay now" ----------------------------------------------------------------------------------------------------
// A file named `decay` in the run directory lets the learning rate of a wsd or inverse-sqrt schedule fall from the
// current step on, and ends the run with the decay.
//
//   echo 2000 > runs/long/decay     # over the next 2000 steps
//
// Rank 0 looks for the file at the end of a step, at most once a second, and the ranks agree on what it found
// (Run::agree()). A decay that begins after step k has the rates of --decay-from k. It is saved in checkpoints, the
// first of which is written at once. Then the file is deleted, so a run that is killed before that finds it again.

// A decay that somebody began by hand. After step `from` the rate falls, and the run ends with step `until`.
struct Decay {
    int64_t from = -1, until = -1;  // -1: none began
    bool has_begun() const { return from >= 0; }
};

class DecayFile {
public:
    static constexpr int64_t kNone = -1;
    DecayFile(const TrainerConfig& config, const TrainSources& sources, const RunDirectory& directory,
              double seconds_between_looks = 1);

    // The number of steps for which the file asks after `step`, or kNone. A file without a line feed counts once it is
    // the same at two looks, because its writer may not be done at the first. A file that asks for a decay that this
    // run cannot begin is deleted, and its problem printed. Anything but a number is not a request and stays.
    int64_t look(int64_t step);
    // Deletes the file, and looks no more. Call once a checkpoint holds the decay, or if none will.
    void forget();

private:
    // Why there can be no decay of `steps` steps after `step`; "" if there can.
    std::string problem_of(int64_t step, int64_t steps) const;

    const TrainerConfig& config_;
    const TrainSources& sources_;
    const double interval_;                       // seconds between looks
    std::string directory_;                       // "" if this process does not look
    double next_look_ = 0;                        // monotonic_seconds()
    std::optional<std::string> seen_, answered_;  // content of the file at the last look, and at the last answer
};

}  // namespace llmc
