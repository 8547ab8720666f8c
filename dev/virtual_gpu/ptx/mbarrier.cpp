// mbarrier objects and their instructions (mbarrier.h).
#include "dev/virtual_gpu/ptx/mbarrier.h"

#include <algorithm>
#include <cstring>

#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

std::string MBarrier::describe() const {
    return format("phase %u, which waits for %u of %u arrivals and %lld bytes", phase, pending, expected,
                  static_cast<long long>(bytes));
}

MBarrier& MBarriers::at(const Warp& w, const Op& op, int lane, uint32_t address) {
    const auto found = all_.find(address);
    if (found == all_.end()) w.fail(op, lane, "no mbarrier was initialized at shared %u", address - kSharedBase);
    return found->second;
}

void MBarriers::complete_phase(Warp& w, uint32_t address, MBarrier& b) {
    b.phase++;
    b.pending = b.expected;
    b.released = b.arriving;
    w.block->events++;
    w.block->async->copies.complete_phase(*w.block, address);
}

void MBarriers::arrive(Warp& w, const Op& op, int lane, uint32_t address, uint32_t count) {
    MBarrier& b = at(w, op, lane, address);
    if (count > b.pending)
        w.fail(op, lane, "%u arrivals at the mbarrier at shared %u are more than are expected: %s", count,
               address - kSharedBase, b.describe().c_str());
    if (w.block->races) w.block->races->release_to(w, 1u << lane, b.arriving);
    b.pending -= count;
    w.block->events++;
    if (b.pending == 0 && b.bytes == 0) complete_phase(w, address, b);
}

void MBarriers::expect(Warp& w, const Op& op, int lane, uint32_t address, int64_t bytes) {
    MBarrier& b = at(w, op, lane, address);
    b.bytes += bytes;
    if (std::abs(b.bytes) > kMostCount)
        w.fail(op, lane, "the mbarrier at shared %u cannot count %lld bytes", address - kSharedBase,
               static_cast<long long>(b.bytes));
    w.block->events++;
    if (b.pending == 0 && b.bytes == 0) complete_phase(w, address, b);
}

// ---- instructions --------------------------------------------------------------------------------------------------

namespace {

// Every use of a barrier is an access to the bytes in which it lies.
Addresses barrier_addresses(Warp& w, const Op& op, const char* what) {
    Addresses at;
    resolve(w, op, kBarrierBytes, what, at);
    if (!at.is_shared) w.fail(op, first_lane(w.mask), "%s outside of shared memory", what);
    return at;
}

Addresses used_barriers(Warp& w, const Op& op, const char* what) {
    const Addresses at = barrier_addresses(w, op, what);
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        const MBarrier& b = w.block->async->barriers.at(w, op, lane, shared_address(*w.block, at.written[lane]));
        if (w.block->races && !w.block->races->knows(w, lane, b.init))
            w.fail(op, lane, "a race with the mbarrier's init by warp %d, lane %d at PTX line %u", b.init.warp,
                   b.init.lane, b.line);
    }
    if (w.block->races) w.block->races->note(w, op, at, kBarrierBytes, Access::atomic);
    return at;
}

uint32_t checked_count(const Warp& w, const Op& op, int lane, uint32_t count, uint32_t least) {
    if (count < least || count > kMostCount) w.fail(op, lane, "a count of %u, which mbarriers do not have", count);
    return count;
}

bool is_complete(Warp& w, const Op& op, int lane, const MBarrier& b) {
    const uint32_t parity = w.at<const uint32_t>(op.at[1])[lane];
    if (parity > 1) w.fail(op, lane, "phase parity %u", parity);
    return (b.phase & 1) != parity;
}

}  // namespace

void mbarrier_init(Warp& w, const Op& op) {
    const Addresses at = barrier_addresses(w, op, "mbarrier");
    Async& async = *w.block->async;
    const uint32_t* const counts = w.at<const uint32_t>(op.at[1]);
    if (w.block->races) w.block->races->note(w, op, at, kBarrierBytes, Access::write);
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        const uint32_t address = shared_address(*w.block, at.written[lane]);
        if (const auto found = async.barriers.all().find(address); found != async.barriers.all().end())
            w.fail(op, lane, "an mbarrier is there already, of PTX line %u", found->second.line);
        MBarrier b;
        b.expected = b.pending = checked_count(w, op, lane, counts[lane], 1);
        b.line = op.line;
        b.epoch = async.proxies.now();
        b.thread = thread_of(w, lane);
        if (w.block->races) b.init = w.block->races->moment(w, lane);
        async.barriers.all()[address] = b;
        std::memset(at.written[lane], kOpaque, kBarrierBytes);
    }
}

void mbarrier_arrive(Warp& w, const Op& op) {
    const Addresses at = used_barriers(w, op, "mbarrier.arrive");
    MBarriers& barriers = w.block->async->barriers;
    const uint32_t* const operand = w.at<const uint32_t>(op.at[1]);
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        const uint32_t address = shared_address(*w.block, at.written[lane]);
        const bool expects = op.mode == 1;
        const uint32_t number = checked_count(w, op, lane, operand[lane], expects ? 0 : 1);
        if (expects) barriers.expect(w, op, lane, address, number);
        barriers.arrive(w, op, lane, address, expects ? 1 : number);
    }
}

void mbarrier_wait(Warp& w, const Op& op) {
    const Addresses at = used_barriers(w, op, "mbarrier's wait");
    Async& async = *w.block->async;
    uint32_t complete = 0;
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        const uint32_t address = shared_address(*w.block, at.written[lane]);
        MBarrier& b = async.barriers.at(w, op, lane, address);
        const bool too_early = w.block->random && w.block->next_random() % 4 == 0;
        while (!is_complete(w, op, lane, b) && !too_early && async.copies.deliver(w, address)) {
        }
        if (!is_complete(w, op, lane, b)) continue;
        complete |= 1u << lane;
        if (w.block->races) w.block->races->acquire_from(w, 1u << lane, b.released);
    }
    w.set_predicate(op.at[0], complete);
    if (complete == w.mask) return;
    const int waiting = first_lane(w.mask & ~complete);
    wait_in_vain(w, op, shared_address(*w.block, at.written[waiting]));
}

void mbarrier_pass(Warp& w, const Op& op) { w.set_predicate(op.at[0], w.mask); }

}  // namespace virtual_gpu
