// Race detection with vector clocks (races.h).
#include "dev/virtual_gpu/ptx/races.h"

#include <sys/mman.h>

#include <algorithm>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/source.h"

namespace virtual_gpu {
namespace {

bool detecting = true;

}  // namespace

Races* Races::wanted() {
    static Races* const races = options().races ? new Races : nullptr;
    return detecting ? races : nullptr;
}

void Races::start_launch() {
    constexpr size_t kBytes = kDeviceSpace / 4 * sizeof(Word);
    if (!global_) global_ = static_cast<Word*>(reserve(kBytes, PROT_READ | PROT_WRITE));
    // Entries of earlier launches are obsolete; their memory is released now and then.
    if (launch_++ % 64 == 63) madvise(global_, kBytes, MADV_DONTNEED);
    first_block_ = block_ + 1;
}

void Races::start_block(const Block& block) {
    running_ = &block;
    block_++;
    clocks_.assign(block.warps.size(), Clocks{});
    for (size_t w = 0; w < clocks_.size(); w++) {
        clocks_[w].known.warps.assign(clocks_.size(), 0);
        clocks_[w].known.warps[w] = 1;
        for (size_t lane = 0; lane < kLanes; lane++) clocks_[w].lanes[lane][lane] = 1;
    }
    meetings_.fill({});
    if (shared_.size() <= block.shared.size() / 4) shared_.resize(block.shared.size() / 4 + 1);
}

// ---- accesses ------------------------------------------------------------------------------------------------------

Races::Moment Races::moment(const Warp& w, int lane) {
    Clocks& clocks = clocks_[static_cast<size_t>(w.index)];
    clocks.used = true;
    clocks.since_met |= 1u << lane;
    const auto place = static_cast<size_t>(lane);
    return {clocks.known.warps[static_cast<size_t>(w.index)], clocks.lanes[place][place], w.index, lane};
}

inline Races::Entry Races::entry(const Warp& w, const Op& op, int lane, Access access) {
    const Moment now = moment(w, lane);
    return {block_,
            op.line,
            now.lane_clock,
            now.warp_clock,
            static_cast<uint16_t>(w.index),
            static_cast<uint8_t>(lane),
            15,
            access == Access::atomic};
}

bool Races::knows_warp(const Clocks& clocks, int warp, int lane, uint32_t warp_clock, uint32_t lane_clock) const {
    const auto of = static_cast<size_t>(warp);
    return warp_clock <= clocks.known.warps[of] ||
           (!clocks.known.lanes.empty() && lane_clock <= clocks.known.lanes[of][static_cast<size_t>(lane)]);
}

// Accesses of one thread, and accesses without common bytes, also count as ordered.
inline bool Races::is_ordered(const Entry& before, const Entry& now, uint32_t oldest) const {
    if (before.block < oldest || (before.bytes & now.bytes) == 0) return true;
    if (before.block != now.block) return false;
    const Clocks& known = clocks_[now.warp];
    if (before.warp != now.warp)
        return knows_warp(known, before.warp, before.lane, before.warp_clock, before.lane_clock);
    return before.lane == now.lane || before.lane_clock <= known.lanes[now.lane][before.lane];
}

inline void Races::note_word(Warp& w, const Op& op, Word& word, const Entry& now, Access access, bool is_shared) const {
    const uint32_t oldest = is_shared ? block_ : first_block_;  // entries of earlier blocks are obsolete
    const auto check = [&](const Entry& before) {
        if (!(before.is_atomic && now.is_atomic) && !is_ordered(before, now, oldest))
            fail(w, op, before, now, is_shared);
    };
    check(word.write);
    if (access == Access::read) {
        if (is_ordered(word.first_read, now, oldest)) word.first_read = now;
        word.last_read = now;
        return;
    }
    check(word.first_read);
    check(word.last_read);
    // One thread's bytes of a word arrive together.
    const bool again = word.write.block == block_ && word.write.warp == now.warp && word.write.lane == now.lane &&
                       word.write.warp_clock == now.warp_clock && word.write.lane_clock == now.lane_clock;
    const unsigned earlier = again ? word.write.bytes : 0u;
    word.write = now;
    word.write.bytes |= earlier & 15;
}

void Races::note(Warp& w, const Op& op, const Addresses& at, uint32_t bytes, Access access) {
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        const uint8_t* const written = at.written[lane];
        if (!at.is_shared && !Memory::get().is_shadow(written)) continue;  // pinned memory belongs to the host
        Word* const words = at.is_shared ? &shared_[static_cast<size_t>(written - running_->shared_written.data()) / 4]
                                         : &global_[Memory::get().device_offset(written) / 4];
        Entry now = entry(w, op, lane, access);
        const size_t first = reinterpret_cast<uint64_t>(at.bytes[lane]) % 4;
        if (bytes < 4) now.bytes = (((1u << bytes) - 1) << first) & 15;
        for (uint32_t b = 0; b < bytes; b += 4) note_word(w, op, words[b / 4], now, access, at.is_shared);
    }
}

void Races::note_shared_write(Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes) {
    const Entry now = entry(w, op, lane, Access::write);
    for (uint32_t b = 0; b < bytes; b += 4)
        note_word(w, op, shared_[(address - kSharedBase + b) / 4], now, Access::write, true);
}

void Races::fail(Warp& w, const Op& op, const Entry& before, const Entry& now, bool is_shared) const {
    const std::string_view text = line_of(w.block->launch->kernel->source->text, before.line);
    const std::string who =
        before.block != now.block ? "another block" : format("warp %d, lane %d of its block", before.warp, before.lane);
    w.fail(op, now.lane, "a race in %s memory with %s at PTX line %u '%.*s'", is_shared ? "shared" : "global",
           who.c_str(), before.line, static_cast<int>(text.size()), text.data());
}

// ---- what orders threads -------------------------------------------------------------------------------------------

void Races::order_lanes(Clocks& clocks, uint32_t members) {
    std::array<uint32_t, kLanes> joined{};
    for (size_t lane = 0; lane < kLanes; lane++)
        if (has(members, static_cast<int>(lane)))
            for (size_t of = 0; of < kLanes; of++) joined[of] = std::max(joined[of], clocks.lanes[lane][of]);
    for (size_t lane = 0; lane < kLanes; lane++) {
        if (!has(members, static_cast<int>(lane))) continue;
        clocks.lanes[lane] = joined;
        clocks.lanes[lane][lane]++;
    }
}

void Races::warp_barrier(const Warp& w, uint32_t members) {
    Clocks& clocks = clocks_[static_cast<size_t>(w.index)];
    order_lanes(clocks, members);
    if (w.alive & ~members) return;
    uint32_t& clock = clocks.known.warps[static_cast<size_t>(w.index)];
    if (clocks.used) clock++;
    clocks.used = false;
    clocks.met = clock - 1;
    clocks.since_met = 0;
}

void Races::join(Knowledge& to, const Knowledge& from) {
    to.warps.resize(std::max(to.warps.size(), from.warps.size()), 0);
    to.lanes.resize(std::max(to.lanes.size(), from.lanes.size()));
    for (size_t n = 0; n < from.warps.size(); n++) to.warps[n] = std::max(to.warps[n], from.warps[n]);
    for (size_t n = 0; n < from.lanes.size(); n++)
        for (size_t of = 0; of < kLanes; of++) to.lanes[n][of] = std::max(to.lanes[n][of], from.lanes[n][of]);
}

void Races::release_to(const Warp& w, uint32_t lanes, Knowledge& to) {
    const auto warp = static_cast<size_t>(w.index);
    Clocks& clocks = clocks_[warp];
    Knowledge now = clocks.known;
    now.lanes.resize(clocks_.size());
    if (!clocks.used) now.warps[warp]--;  // else later accesses would count as known
    if (clocks.since_met & ~lanes) now.warps[warp] = clocks.met;
    for (size_t lane = 0; lane < kLanes; lane++) {
        if (!has(lanes, static_cast<int>(lane))) continue;
        for (size_t of = 0; of < kLanes; of++)
            now.lanes[warp][of] = std::max(now.lanes[warp][of], clocks.lanes[lane][of]);
        clocks.lanes[lane][lane]++;
    }
    join(to, now);
    if (clocks.used) clocks.known.warps[warp]++;
    clocks.used = false;
}

void Races::acquire_from(const Warp& w, uint32_t lanes, const Knowledge& from) {
    if (from.warps.empty()) return;
    const auto warp = static_cast<size_t>(w.index);
    Clocks& clocks = clocks_[warp];
    const uint32_t own = clocks.known.warps[warp];
    join(clocks.known, from);
    clocks.known.warps[warp] = own;
    for (size_t lane = 0; lane < kLanes; lane++)
        for (size_t of = 0; has(lanes, static_cast<int>(lane)) && of < kLanes; of++)
            if (of != lane) clocks.lanes[lane][of] = std::max(clocks.lanes[lane][of], from.lanes[warp][of]);
}

bool Races::knows(const Warp& w, int lane, const Moment& moment) const {
    const Clocks& known = clocks_[static_cast<size_t>(w.index)];
    if (moment.warp != w.index)
        return knows_warp(known, moment.warp, moment.lane, moment.warp_clock, moment.lane_clock);
    return moment.lane == lane ||
           moment.lane_clock <= known.lanes[static_cast<size_t>(lane)][static_cast<size_t>(moment.lane)];
}

void Races::arrive(const Warp& w, size_t barrier, bool waits) {
    const auto warp = static_cast<size_t>(w.index);
    Meeting& meeting = meetings_[barrier];
    Clocks& clocks = clocks_[warp];
    join(meeting.known, clocks.known);
    if (waits) meeting.waiting.push_back(warp);
    clocks.met = clocks.known.warps[warp]++;
    clocks.since_met = 0;
    clocks.used = false;
    order_lanes(clocks, kAllLanes);
}

void Races::release(size_t barrier) {
    Meeting& meeting = meetings_[barrier];
    for (size_t warp : meeting.waiting) {
        Knowledge& known = clocks_[warp].known;
        const uint32_t own = known.warps[warp];
        join(known, meeting.known);
        known.warps[warp] = own;
    }
    meeting = {};
}

}  // namespace virtual_gpu

extern "C" void virtual_gpu_detects_races(bool on) { virtual_gpu::detecting = on; }
