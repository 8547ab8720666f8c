// Measures waits for other ranks, see peer_waits.h.
#include "llmc/comm/peer_waits.h"

#include <utility>

namespace llmc {

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
