// The ring of recent collectives and the list of unfinished device operations (operation_log.h).
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
    OperationEntry& entry = ring_[count_++ % kKept];
    last_activity_ = monotonic_seconds();
    entry = {count_, name, group, bytes, step_, OperationEntry::State::running, last_activity_, 0, false};
    return count_;
}

OperationEntry* OperationLog::kept(uint64_t sequence) {
    OperationEntry& entry = ring_[(sequence - 1) % kKept];
    return entry.sequence == sequence ? &entry : nullptr;
}

void OperationLog::end(uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    last_activity_ = monotonic_seconds();
    OperationEntry* entry = kept(sequence);
    if (!entry) return;
    entry->state = OperationEntry::State::done;
    entry->ended = last_activity_;
    blocked_ += entry->ended - entry->began;
}

void OperationLog::issued(uint64_t sequence, ProgressQuery progress) {
    const std::lock_guard lock(mutex_);
    last_activity_ = monotonic_seconds();
    OperationEntry* entry = kept(sequence);
    if (!entry) return;  // overwritten: 32 later operations of the same group stand for it
    entry->state = OperationEntry::State::issued;
    entry->on_device = true;
    pending_.push_back({*entry, std::make_shared<const ProgressQuery>(std::move(progress))});
}

void OperationLog::look(size_t most) {
    std::vector<std::pair<uint64_t, std::shared_ptr<const ProgressQuery>>> asked;
    {
        const std::lock_guard lock(mutex_);
        for (const Pending& p : pending_) {
            if (asked.size() >= most) break;
            asked.emplace_back(p.entry.sequence, p.progress);
        }
    }
    // Without the lock, because a query may hang.
    for (const auto& [sequence, progress] : asked) note(sequence, (*progress)());
}

void OperationLog::note(uint64_t sequence, DeviceProgress progress) {
    if (progress == DeviceProgress::waiting) return;
    const std::lock_guard lock(mutex_);
    const auto place =
        std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.entry.sequence == sequence; });
    if (place == pending_.end()) return;  // another thread was faster
    OperationEntry& entry = place->entry;
    if (progress == DeviceProgress::running) {
        entry.state = OperationEntry::State::running;
    } else {
        entry.state = OperationEntry::State::done;
        entry.ended = last_activity_ = monotonic_seconds();
    }
    if (OperationEntry* shown = kept(sequence)) *shown = entry;
    if (entry.state == OperationEntry::State::done) pending_.erase(place);
}

OperationEntry OperationLog::unfinished() const {
    const std::lock_guard lock(mutex_);
    for (const Pending& p : pending_)
        if (p.entry.state == OperationEntry::State::running) return p.entry;
    const OperationEntry* last = count_ ? &ring_[(count_ - 1) % kKept] : nullptr;
    if (last && last->state == OperationEntry::State::running) return *last;
    return pending_.empty() ? OperationEntry{} : pending_.front().entry;
}
std::vector<OperationEntry> OperationLog::recent() const {
    const std::lock_guard lock(mutex_);
    std::vector<OperationEntry> entries;
    for (uint64_t i = count_ > kKept ? count_ - kKept : 0; i < count_; i++) entries.push_back(ring_[i % kKept]);
    return entries;
}

}  // namespace llmc
