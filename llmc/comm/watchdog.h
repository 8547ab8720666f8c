// Ends this process when its run stands still or another rank is lost, so that a failure anywhere ends all ranks within
// seconds, and each prints where it stood. It has its own thread, because the main thread may be stuck inside a
// collective. It exits with code 7 and without MPI_Finalize, so mpirun ends the other ranks.
//
//   Watchdog watchdog(limits, launch.rank);          // before connect(): the `start` limit runs from here
//   watchdog.watch(comm, out_directory);             // right after connect(), so also while NCCL starts
//   watchdog.begin_step(step);                       // every step; watchdog.alive() in long work without collectives
//   watchdog.begin(Watchdog::Phase::save);           // and begin_step() after it
//   watchdog.stop();                                 // before reporting an error, and before comm.finish()
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct OperationEntry;

// Seconds without a sign of life (a collective that begins or ends, or a call below); 0 for no limit. Time in which the
// machine did not run this process, because it was suspended or starved, does not count. Before watch() the watchdog
// allows a few seconds more than `start`, since connect() has the same limit and a better message.
struct WatchdogLimits {
    double start = 600, step = 300, save = 900;
};

// A sentence about what a stalled rank is doing, from the operation it has not finished.
const char* standstill_reason(const OperationEntry& unfinished);

class Watchdog {
public:
    enum class Phase { start, step, save };

    Watchdog(const WatchdogLimits& limits, int rank);
    ~Watchdog();
    Watchdog(Watchdog&&) = delete;

    // Begins to watch `comm`. Reports go to `directory`/watchdog_rank00000.json; none are written if it is "".
    void watch(const Comm& comm, const std::string& directory);
    void begin(Phase phase);
    void begin_step(int64_t step);
    void alive();
    void stop();  // ends the watch
    // Ends the watch, and writes a report if `error` says that another rank was lost. Called by the main thread, which
    // then prints the error itself.
    void report_loss(const Error& error);

private:
    void run();
    std::string problem();  // "" while all is well
    [[noreturn]] void leave(const std::string& problem);
    void leave_soon();
    OperationEntry last_operation() const;
    void write_report(const std::string& problem) const;

    const WatchdogLimits limits_;
    const int rank_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false, leaving_ = false;
    std::optional<Comm> comm_;
    std::string directory_;
    Phase phase_ = Phase::start;
    int64_t step_ = 0;
    double last_sign_, failed_since_ = 0;  // monotonic_seconds()
    double last_look_, last_seen_sign_ = 0, waited_ = 0;
    std::thread thread_;
};

}  // namespace llmc
