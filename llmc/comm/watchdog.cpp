// The watchdog's thread, its decisions, and its report (watchdog.h).
#include "llmc/comm/watchdog.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "llmc/base/clock.h"
#include "llmc/base/json.h"
#include "llmc/comm/operation_log.h"

namespace llmc {

template <>
inline constexpr WordTable<Watchdog::Phase> kWords<Watchdog::Phase> = {
    {"start", Watchdog::Phase::start}, {"step", Watchdog::Phase::step}, {"save", Watchdog::Phase::save}};

// Times in seconds.
constexpr double kInterval = 0.2;      // between two checks
constexpr double kGrace = 1.0;         // for the main thread to report a lost rank itself, in more detail
constexpr double kMeetingGrace = 8.0;  // for connect() to end by itself, for example while a name server is silent
constexpr double kLastWords = 3.0;     // for the last message and report, because the terminal or the disk may hang too

static double limit_of(const WatchdogLimits& limits, Watchdog::Phase phase) {
    return phase == Watchdog::Phase::start ? limits.start : phase == Watchdog::Phase::step ? limits.step : limits.save;
}

static void write_all(int descriptor, const std::string& text) {
    size_t at = 0;
    while (at < text.size()) {
        const ssize_t n = ::write(descriptor, text.data() + at, text.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        at += static_cast<size_t>(n);
    }
}

static Json to_json(const OperationEntry& entry, double now) {
    Json json = {{"name", entry.name},   {"sequence", entry.sequence}, {"group", entry.group},
                 {"bytes", entry.bytes}, {"step", entry.step},         {"state", word_of(entry.state)}};
    json["began_seconds_ago"] = now - entry.began;
    if (entry.ended > 0) json["ended_seconds_ago"] = now - entry.ended;
    return json;
}

const char* standstill_reason(const OperationEntry& unfinished) {
    if (unfinished.sequence == 0) return "it is in no collective: look here, the other ranks may be waiting for it";
    if (unfinished.state == OperationEntry::State::issued)
        return "its GPU has not reached a collective that was issued: look here, for work that hangs or takes long";
    return "it waits for other ranks in a collective";
}

Watchdog::Watchdog(const WatchdogLimits& limits, int rank)
    : limits_(limits), rank_(rank), last_sign_(monotonic_seconds()), last_look_(last_sign_), thread_([this] {
          run();
      }) {}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(const Comm& comm, const std::string& directory) {
    const std::lock_guard lock(mutex_);
    comm_ = comm;
    directory_ = directory;
    last_sign_ = monotonic_seconds();
}

void Watchdog::begin(Phase phase) {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
    last_sign_ = monotonic_seconds();
}

void Watchdog::begin_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::step;
    step_ = step;
    last_sign_ = monotonic_seconds();
    if (comm_) comm_->log().set_step(step);
}

void Watchdog::alive() {
    const std::lock_guard lock(mutex_);
    last_sign_ = monotonic_seconds();
}

void Watchdog::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        if (const std::string text = problem(); !text.empty()) leave(text);
        wake_.wait_for(lock, std::chrono::duration<double>(kInterval), [this] { return stopping_; });
    }
}

std::string Watchdog::problem() {
    const double now = monotonic_seconds();
    if (comm_) {
        if (const std::string ended = comm_->ended_neighbour(); !ended.empty()) return ended;
        if (const std::string failure = comm_->failure(); failure.empty())
            failed_since_ = 0;
        else if (failed_since_ == 0)
            failed_since_ = now;
        else if (now - failed_since_ > kGrace)
            return failure;
    }
    const double limit = limit_of(limits_, phase_), grace = comm_ ? 0 : kMeetingGrace;
    const double sign = std::max(last_sign_, comm_ ? comm_->log().last_activity() : 0.0);
    if (sign > last_seen_sign_)
        waited_ = std::min(now - sign, kInterval);
    else
        waited_ += std::min(now - last_look_, 2 * kInterval);
    last_seen_sign_ = sign;
    last_look_ = now;
    if (limit <= 0 || waited_ <= limit + grace) return {};
    leave_soon();  // exits soon even if a hanging device does not answer below
    if (comm_) comm_->log().look();
    return fmt::format("nothing moved for {:.1f} s (--timeout-{} {:g}): {}", waited_, word_of(phase_), limit,
                       comm_ ? standstill_reason(comm_->log().unfinished()) : "the ranks have not met yet");
}

void Watchdog::leave_soon() {
    if (leaving_) return;
    leaving_ = true;
    std::thread([] {
        std::this_thread::sleep_for(std::chrono::duration<double>(kLastWords));
        _exit(static_cast<int>(ExitCode::communication));
    }).detach();
}

// Called with mutex_ held, so a main thread that still moves waits for it and reports nothing itself.
void Watchdog::leave(const std::string& problem) {
    constexpr int code = static_cast<int>(ExitCode::communication);
    leave_soon();
    write_all(STDERR_FILENO, fmt::format("rank {} on {}: {}; step {}, last operation: {}. Leaving with exit code {}\n",
                                         rank_, comm_ ? comm_->host(comm_->rank()) : "this machine", problem, step_,
                                         last_operation().describe(), code));
    write_report(problem);
    std::fflush(stdout);
    // mpirun ends all ranks when the first one exits, so give the others time to notice and report the problem.
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * kInterval));
    _exit(code);
}

void Watchdog::report_loss(const Error& error) {
    stop();
    if (error.code() == ExitCode::communication) write_report(error.what());
}

// The operation that has not finished, or else the last one.
OperationEntry Watchdog::last_operation() const {
    if (!comm_) return {};
    const OperationEntry unfinished = comm_->log().unfinished();
    return unfinished.sequence ? unfinished : comm_->log().last();
}

void Watchdog::write_report(const std::string& problem) const {
    if (directory_.empty()) return;
    const double now = monotonic_seconds();
    Json report = {{"backend", comm_->name()},
                   {"rank", rank_},
                   {"world", comm_->world()},
                   {"host", comm_->host(comm_->rank())},
                   {"pid", getpid()},
                   {"problem", problem},
                   {"step", step_},
                   {"phase", word_of(phase_)},
                   {"limit_seconds", limit_of(limits_, phase_)},
                   {"exit_code", static_cast<int>(ExitCode::communication)}};
    report["unix_time"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    report["last_operation"] = to_json(last_operation(), now);
    report["recent_operations"] = Json::array();
    for (const OperationEntry& entry : comm_->log().recent())
        report["recent_operations"].push_back(to_json(entry, now));
    const std::string path = fmt::format("{}/watchdog_rank{:05}.json", directory_, rank_);
    // Written under another name, since this process may be killed halfway.
    const std::string temporary = path + ".tmp";
    const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0) return;
    write_all(file, json_text(report, 1) + "\n");
    std::rename(temporary.c_str(), path.c_str());
    fsync(file);
    close(file);
}

}  // namespace llmc
