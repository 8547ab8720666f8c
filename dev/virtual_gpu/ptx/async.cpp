// Proxies, and the state of a block's asynchronous instructions (async.h).
#include "dev/virtual_gpu/ptx/async.h"

#include <algorithm>
#include <cstring>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

// ---- proxies -------------------------------------------------------------------------------------------------------

void Proxies::start(const Block& block) {
    now_ = 1;
    words_.assign(block.shared.size() / 4 + 1, Word{});
    fences_.assign(block.warps.size() * kLanes, 0);
}

void Proxies::note_write(int thread, uint32_t address, uint32_t bytes, uint32_t line) {
    const uint32_t first = (address - kSharedBase) / 4, last = (address - kSharedBase + bytes - 1) / 4;
    for (uint32_t word = first; word <= last; word++) words_[word] = {now_, line, thread};
}

void Proxies::check(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes, const char* what) const {
    const uint32_t first = (address - kSharedBase) / 4, last = (address - kSharedBase + bytes - 1) / 4;
    for (uint32_t n = first; n <= last; n++) {
        const Word& word = words_[n];
        if (word.line == 0 || is_fenced_since(word.thread, word.epoch) ||
            is_fenced_since(thread_of(w, lane), word.epoch))
            continue;
        w.fail(op, lane, "%s shared %u, which thread %d wrote at PTX line %u, without fence.proxy.async between", what,
               n * 4, word.thread, word.line);
    }
}

void Proxies::forget(uint32_t address, uint32_t bytes) {
    for (uint32_t b = 0; b < bytes; b += 4) words_[(address - kSharedBase + b) / 4] = {};
}

void fence_async(Warp& w, const Op& op) {
    Async& async = *w.block->async;
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int thread = thread_of(w, first_lane(left));
        if (op.mode == 0) {
            async.proxies.fence(thread);
        } else {  // fence.mbarrier_init
            for (auto& [address, barrier] : async.barriers.all())
                if (barrier.thread == thread) barrier.fenced = true;
        }
    }
}

// ---- a block -------------------------------------------------------------------------------------------------------

void Async::start(Block& block) {
    barriers.start();
    proxies.start(block);
    copies.start(block);
    const int launched = (block.launch->kernel->registers + 7) / 8 * 8;  // a warp gets registers in units of 256
    registers.assign(block.warps.size(), launched);
    registers_in_all = launched * static_cast<int>(block.warps.size());
    warpgroups.assign((block.warps.size() + kWarpgroup - 1) / kWarpgroup, {});
    if (block.code->touches.empty()) return;
    products.assign(block.warps.size(), {});
    product_reads.assign(block.shared.size() / kBulkBytes + 1, 0);
    for (Warp& w : block.warps) {
        w.products = &products[static_cast<size_t>(w.index)];
        w.products->start(w);
    }
}

void Async::finish(Block& block) {
    copies.finish(block);
    for (const Warp& w : block.warps)
        if (w.products) w.products->finish(w);
    for (size_t group = 0; group < warpgroups.size(); group++) {
        const WarpgroupLog& log = warpgroups[group];
        for (int n = 0; n < kWarpgroup; n++)
            if (log.count[n] != log.entries.size()) {
                const WarpgroupLog::Entry& missed = log.entries[log.count[n]];
                fault("kernel %s, block (%u,%u,%u): warp %d ends without the %s of PTX line %u, which warp %d executed",
                      block.launch->kernel->readable.c_str(), block.id[0], block.id[1], block.id[2],
                      static_cast<int>(group) * kWarpgroup + n,
                      block.code->opcodes[static_cast<size_t>(missed.op - block.code->ops.data())].c_str(),
                      missed.op->line, missed.warp);
            }
    }
}

void Async::check_products(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes,
                           const char* what) const {
    bool read = false;
    for (uint32_t n = (address - kSharedBase) / kBulkBytes; n <= (address + bytes - 1 - kSharedBase) / kBulkBytes; n++)
        read |= product_reads[n] > 0;
    if (!read) return;
    for (const Warp& other : w.block->warps)
        if (const Product* const reader = other.products->reader_of(other, address, bytes))
            w.fail(op, lane, "a %s to shared %u, which the wgmma of warp %d at PTX line %u may still read", what,
                   address - kSharedBase, other.index, reader->op->line);
}

void Async::note_write(Warp& w, const Op& op, const Addresses& to, uint32_t bytes) {
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        const uint32_t address = shared_address(*w.block, to.written[lane]);
        if (std::find(to.written[lane], to.written[lane] + bytes, kOpaque) != to.written[lane] + bytes)
            w.fail(op, lane, "a write to shared %u, where an mbarrier lies", address - kSharedBase);
        if (!copies.empty()) copies.check_write(w, op, lane, address, bytes);
        if (w.products) check_products(w, op, lane, address, bytes, "write");
        proxies.note_write(thread_of(w, lane), address, bytes, op.line);
    }
}

namespace {

// Lets other lanes of the warp run, since this path may be waiting for them.
void rotate_paths(Warp& w) {
    if (w.paths.size() < 2) return;
    Warp::Path &top = w.paths.back(), &other = w.paths[w.paths.size() - 2];
    if (top.meet != other.meet || (other.mask & w.alive) == 0) return;
    top = {w.pc, top.meet, w.active};
    std::swap(top, other);
    w.pc = w.paths.back().pc;
    w.active = w.paths.back().mask & w.alive;
}

}  // namespace

void wait_in_vain(Warp& w, const Op& op, uint32_t address) {
    w.waits_for = address;
    w.waits_at = &op;
    if (w.seen_events != w.block->events) w.waits_failed = 0;
    w.seen_events = w.block->events;
    w.waits_failed++;
    w.yield = true;
    rotate_paths(w);
}

std::string Async::describe_wait(const Warp& w) const {
    if (w.waits_for == 0) return format(" warp %d for registers (PTX line %u);", w.index, w.waits_at->line);
    std::string state = "that is no more";
    for (const auto& [address, barrier] : barriers.all_of())
        if (address == w.waits_for) state = barrier.describe();
    return format(" warp %d at the mbarrier at shared %u (PTX line %u): %s;", w.index, w.waits_for - kSharedBase,
                  w.waits_at->line, state.c_str());
}

}  // namespace virtual_gpu
