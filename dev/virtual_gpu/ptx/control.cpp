// Branches, returns and barriers.
//
// A warp whose lanes diverge keeps a stack of paths: the place of each path's lanes, and where they meet the lanes of
// the path below. Lanes that branch to the meeting point of their own path need no new path: they belong to the path
// below.
//
// Paths that never meet, because one of them returns, run one after the other. If one reaches an instruction for
// several lanes, it lets the others continue first.
#include <algorithm>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/ptx/instructions.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

void Warp::pop_path() {
    paths.pop_back();
    while (!paths.empty()) {
        paths.back().mask &= alive;
        if (paths.back().mask) {
            resume();
            return;
        }
        paths.pop_back();
    }
    done = true;
    active = 0;
    yield = true;
}

void Warp::resume() {
    paths.back().waits = false;
    pc = paths.back().pc;
    active = paths.back().mask;
}

bool Warp::run_others_first() {
    Path here = paths.back();
    here.pc = pc - 1;
    here.mask = active;
    here.waits = true;
    size_t first = paths.size() - 1;  // the first of the paths at the top that meet where this one does
    while (first > 0 && paths[first - 1].meet == here.meet) first--;
    const auto begin = paths.begin() + static_cast<long>(first), top = paths.end() - 1;
    const bool any_runs = std::any_of(begin, top, [](const Path& p) { return !p.waits; });
    const auto same = std::find_if(begin, top, [&](const Path& p) { return p.waits && p.pc == here.pc; });
    if (!any_runs && same == top) return false;
    if (same != top) here.mask |= same->mask;
    *top = here;
    if (same != top) paths.erase(same);
    // Waiting paths go below, this one above them.
    std::stable_partition(paths.begin() + static_cast<long>(first), paths.end(), [](const Path& p) { return p.waits; });
    resume();
    return true;
}

void meet(Warp& w, const Op& op) {
    if (w.paths.back().meet == op.immediate) w.pop_path();
}

void branch(Warp& w, const Op& op) {
    const uint32_t taken = w.mask, staying = w.active & ~taken;
    const int behind = w.pc;  // already incremented
    if (staying == 0) {
        w.pc = op.target;
        return;
    }
    if (op.target == behind) return;
    Warp::Path& top = w.paths.back();
    int meet = op.meet;
    if (meet < 0 || meet == top.meet) {
        meet = top.meet;
        w.paths.pop_back();
    } else {
        top.pc = meet;
    }
    const auto push = [&](int pc, uint32_t lanes) {
        if (pc != meet) w.paths.push_back({pc, meet, lanes});
    };
    const bool taken_first = w.block->random == 0 || w.block->next_random() % 2;
    if (taken_first) push(behind, staying);
    push(op.target, taken);
    if (!taken_first) push(behind, staying);
    w.pc = w.paths.back().pc;
    w.active = w.paths.back().mask;
}

void end_lanes(Warp& w, const Op&) {
    w.alive &= ~w.mask;
    w.active &= w.alive;
    if (w.active == 0) w.pop_path();
}

void trap(Warp& w, const Op& op) { w.fail(op, first_lane(w.mask), "trap"); }
void nothing(Warp&, const Op&) {}

void release_barrier(Block& block, int barrier) {
    Block::Barrier& b = block.barriers[static_cast<size_t>(barrier)];
    if (b.arrived == 0) return;
    uint32_t expected = b.expected;
    if (!b.counted) {
        expected = 0;
        for (const Warp& w : block.warps) expected += w.done ? 0 : kLanes;
    }
    if (b.arrived < expected) return;
    b = {};
    block.events++;
    if (block.races) block.races->release(static_cast<size_t>(barrier));
    for (Warp& w : block.warps)
        if (w.waiting && w.barrier == barrier) w.waiting = false;
}

void barrier(Warp& w, const Op& op) {
    const int lane = first_lane(w.mask);
    if (w.mask != w.alive && w.run_others_first()) return;
    if (w.mask != w.alive)
        w.fail(op, lane, "a barrier that lanes %08x of a warp reach and %08x do not", w.mask, w.alive & ~w.mask);
    const uint32_t id = w.at<const uint32_t>(op.at[0])[lane];
    if (id >= w.block->barriers.size()) w.fail(op, lane, "barrier %u", id);
    Block::Barrier& b = w.block->barriers[id];
    const bool counted = op.count > 1;
    const uint32_t expected = counted ? w.at<const uint32_t>(op.at[1])[lane] : 0;
    if (counted && (expected == 0 || expected % kLanes)) w.fail(op, lane, "barrier %u of %u threads", id, expected);
    if (b.arrived && (b.counted != counted || b.expected != expected))
        w.fail(op, lane, "barrier %u: %u threads expected here, %u by those who wait", id, expected, b.expected);
    if (b.warps >> w.index & 1) w.fail(op, lane, "barrier %u: the warp arrives again before it is complete", id);
    b.warps |= 1u << w.index;
    b.counted = counted;
    b.expected = expected;
    b.arrived += kLanes;
    if (w.block->races) w.block->races->arrive(w, id, op.mode == kSync);
    if (op.mode == kSync) {
        w.waiting = true;
        w.barrier = static_cast<int>(id);
        w.yield = true;
    }
    release_barrier(*w.block, static_cast<int>(id));
}

}  // namespace virtual_gpu
