// Keeps recent and unfinished collectives, and asks for the progress of those on a device (operation_log.h).
#include "llmc/comm/operation_log.h"

#include <algorithm>
#include <utility>

#include "llmc/base/clock.h"

namespace llmc {

std::string OperationEntry::describe() const {
    if (sequence == 0) return "no collective yet";
    const double since = monotonic_seconds() - (state == State::done ? ended : began);
    const bool runs = state == State::running && !on_device;
    const char* what = runs ? "running for" : state == State::running ? "running, issued" : word_of(state);
    return fmt::format("{} #{} ({}, {} bytes, step {}, {} {:.1f} s{})", name, sequence, group, bytes, step, what, since,
                       runs ? "" : " ago");
}

uint64_t OperationLog::begin(const char* name, const std::string& group, size_t bytes) {
    const std::lock_guard lock(mutex_);
    last_activity_ = monotonic_seconds();
    kept_.push_back({{++count_, name, group, bytes, step_, OperationEntry::State::running, last_activity_}, nullptr});
    while (kept_.size() > kKept && kept_.front().state == OperationEntry::State::done) kept_.pop_front();
    return count_;
}

OperationLog::Kept* OperationLog::find(uint64_t sequence) {
    const uint64_t first = kept_.front().sequence;
    return sequence < first ? nullptr : &kept_[sequence - first];
}

void OperationLog::issued(uint64_t sequence, ProgressQuery progress) {
    const std::lock_guard lock(mutex_);
    last_activity_ = monotonic_seconds();
    Kept* const entry = find(sequence);
    entry->state = OperationEntry::State::issued;
    entry->on_device = true;
    entry->progress = std::make_shared<const ProgressQuery>(std::move(progress));
}

void OperationLog::look(size_t most) {
    std::vector<std::pair<uint64_t, std::shared_ptr<const ProgressQuery>>> asked;
    {
        const std::lock_guard lock(mutex_);
        for (const Kept& entry : kept_)
            if (entry.progress && asked.size() < most) asked.emplace_back(entry.sequence, entry.progress);
    }
    // Without the lock, because a query may hang.
    for (const auto& [sequence, progress] : asked) note(sequence, (*progress)());
}

void OperationLog::note(uint64_t sequence, DeviceProgress progress) {
    if (progress == DeviceProgress::waiting) return;
    const std::lock_guard lock(mutex_);
    Kept* const entry = find(sequence);
    if (!entry || entry->state == OperationEntry::State::done) return;  // another thread was faster
    entry->state = OperationEntry::State::running;
    if (progress == DeviceProgress::running) return;
    entry->state = OperationEntry::State::done;
    entry->progress = nullptr;
    entry->ended = last_activity_ = monotonic_seconds();
    if (!entry->on_device) blocked_ += entry->ended - entry->began;
}

OperationEntry OperationLog::unfinished() const {
    const std::lock_guard lock(mutex_);
    OperationEntry issued;
    for (const Kept& entry : kept_) {
        if (entry.state == OperationEntry::State::running) return entry;
        if (entry.state == OperationEntry::State::issued && issued.sequence == 0) issued = entry;
    }
    return issued;
}

std::vector<OperationEntry> OperationLog::recent() const {
    const std::lock_guard lock(mutex_);
    return {kept_.end() - static_cast<std::ptrdiff_t>(std::min(kept_.size(), kKept)), kept_.end()};
}

}  // namespace llmc
