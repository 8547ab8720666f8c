// The rule for slow ranks, and the events around waits (rank_time.h).
#include "llmc/comm/rank_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "llmc/comm/operation_log.h"

namespace llmc {

static double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// The times come from another process.
static double sound(double ms) { return std::isfinite(ms) ? std::max(0.0, ms) : 0; }

SlowestRank slowest_rank(const std::vector<RankTime>& ranks) {
    std::vector<double> own, peers;
    for (const RankTime& rank : ranks) {
        own.push_back(sound(sound(rank.ms) - sound(rank.peers_ms)));
        peers.push_back(sound(rank.peers_ms));
    }
    const auto slowest = std::max_element(own.begin(), own.end());
    SlowestRank result;
    result.rank = static_cast<int>(slowest - own.begin());
    result.own_ms = *slowest;
    result.data_ms = sound(ranks[static_cast<size_t>(result.rank)].data_ms);
    result.peers_ms = median(peers);
    own.erase(slowest);
    result.others_ms = median(own);
    return result;
}

SlowRankWatch::Change SlowRankWatch::observe(const SlowestRank& step) {
    const int outstanding = step.ratio() >= kSlowRatio ? step.rank : kNone;
    steps_ = outstanding == outstanding_ ? steps_ + 1 : 1;
    outstanding_ = outstanding;
    if (steps_ < kSlowSteps || slow_ == outstanding_) return Change::none;
    slow_ = outstanding_;
    return slow_ == kNone ? Change::ends : Change::begins;
}

std::string format_slow_rank(int64_t step, const SlowestRank& slowest, const std::string& rank) {
    return fmt::format(
        "step {}: {} is slow: its own work took {:.1f} ms, {:.2f} times as long as the other ranks', {} steps in a "
        "row; {}",
        step, rank, slowest.own_ms, slowest.ratio(), SlowRankWatch::kSlowSteps,
        slowest.waits_for_data() ? fmt::format("it waits {:.1f} ms for its data", slowest.data_ms)
                                 : "it does not wait for its data");
}

void PeerWaits::begin_step(stream_t stream, bool continues) {
    stream_ = stream;
    if (!continues) blocked_before_ = log_->blocked_seconds();
}

PeerWaits::Step PeerWaits::end_step() {
    stream_ = nullptr;
    const double blocked = log_->blocked_seconds(), before = std::exchange(blocked_before_, blocked);
    if (!on_device_) step_.blocked_ms = 1e3 * (blocked - before);
    return std::exchange(step_, {});
}

double PeerWaits::ms(Step step) {
    double ms = step.blocked_ms;
    for (Step::Pair& pair : step.pairs) {
        ms += elapsed_ms(pair.begin, pair.end);
        free_.push_back(std::move(pair));
    }
    return ms;
}

void PeerWaits::begin(stream_t stream) {
    if (!counts(stream) || depth_++ > 0) return;
    if (free_.empty()) free_.push_back({create_event(true), create_event(true)});
    step_.pairs.push_back(std::move(free_.back()));
    free_.pop_back();
    record(step_.pairs.back().begin, stream);
}

void PeerWaits::end(stream_t stream) {
    if (counts(stream) && --depth_ == 0) record(step_.pairs.back().end, stream);
}

}  // namespace llmc
