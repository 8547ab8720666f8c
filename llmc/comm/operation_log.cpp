#include "llmc/comm/operation_log.h"

#include <chrono>

#include "llmc/device/error.h"

namespace llmc {

double monotonic_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* state_name(OperationEntry::State state) {
    switch (state) {
        case OperationEntry::State::running:
            return "running";
        case OperationEntry::State::done:
            return "done";
        case OperationEntry::State::issued:
            return "issued";
    }
    return "";
}

std::string OperationEntry::describe() const {
    if (sequence == 0) return "no collective yet";
    const double since = monotonic_seconds() - (state == State::running ? began : ended);
    return strprintf("%s #%llu (%s, %zu bytes, step %lld, %s %.1f s%s)", name,
                     static_cast<unsigned long long>(sequence), group.c_str(), bytes, static_cast<long long>(step),
                     state == State::running ? "running for" : state_name(state), since,
                     state == State::running ? "" : " ago");
}

uint64_t OperationLog::begin(const char* name, const std::string& group, size_t bytes) {
    const std::lock_guard lock(mutex_);
    OperationEntry& entry = ring_[count_++ % kKept];
    last_activity_ = monotonic_seconds();
    entry = {count_, name, group, bytes, step_, OperationEntry::State::running, last_activity_, 0};
    return count_;
}

void OperationLog::end(uint64_t sequence, OperationEntry::State state) {
    const std::lock_guard lock(mutex_);
    last_activity_ = monotonic_seconds();
    OperationEntry& entry = ring_[(sequence - 1) % kKept];
    if (entry.sequence != sequence) return;  // overwritten by later ones
    entry.state = state;
    entry.ended = last_activity_;
}

void OperationLog::set_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
}
int64_t OperationLog::step() const {
    const std::lock_guard lock(mutex_);
    return step_;
}
OperationEntry OperationLog::last() const {
    const std::lock_guard lock(mutex_);
    return count_ ? ring_[(count_ - 1) % kKept] : OperationEntry{};
}
std::vector<OperationEntry> OperationLog::recent() const {
    const std::lock_guard lock(mutex_);
    std::vector<OperationEntry> entries;
    for (uint64_t i = count_ > kKept ? count_ - kKept : 0; i < count_; i++) entries.push_back(ring_[i % kKept]);
    return entries;
}
double OperationLog::last_activity() const {
    const std::lock_guard lock(mutex_);
    return last_activity_;
}
void OperationLog::set_finishing() {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
}
bool OperationLog::finishing() const {
    const std::lock_guard lock(mutex_);
    return finishing_;
}

}  // namespace llmc
