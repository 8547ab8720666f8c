// Ends this process when its run stands still or another rank is lost, so that a failure anywhere ends all ranks within
// seconds, with a line that says where each of them stood. A thread of its own: the main thread may be stuck inside a
// collective. It leaves with exit code 7 and without MPI_Finalize, on which mpirun ends the other ranks.
//
//   Watchdog watchdog(limits, launch.rank);          // before connect(): the limit of `start` runs from here
//   watchdog.watch(comm, out_directory);             // once comm.attach_device() is through
//   watchdog.begin_step(step);                       // every step; watchdog.alive() in long work without collectives
//   watchdog.begin(Watchdog::Phase::save);           // and begin_step() after it
//   watchdog.stop();                                 // before an error is reported, and before comm.finish()
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

// Seconds without a sign of life (a collective that begins or ends, or a call below); 0: no limit. Time in which the
// machine did not run this process (suspended, or starved by others) does not count. Before watch(), the watchdog waits
// some seconds longer than `start`: connect() has the same limit and knows better what is missing.
struct WatchdogLimits {
    double start = 600, step = 300, save = 900;
};

// What a rank that stands still is doing, by the operation that it has not finished.
const char* standstill_reason(const OperationEntry& unfinished);

class Watchdog {
public:
    enum class Phase { start, step, save };

    Watchdog(const WatchdogLimits& limits, int rank);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Reports go to `directory`/watchdog_rank00000.json; "": none.
    void watch(const Comm& comm, const std::string& directory);
    void begin(Phase phase);
    void begin_step(int64_t step);
    void alive();
    void stop();  // ends the watch
    // Ends the watch and writes a report if `error` says that another rank was lost. For the main thread, which then
    // prints the error itself.
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
