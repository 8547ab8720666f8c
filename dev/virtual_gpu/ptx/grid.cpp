// Runs grids, blocks and warps, and decides which warp runs when.
#include <omp.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/counts.h"
#include "dev/virtual_gpu/ptx/falsify.h"
#include "dev/virtual_gpu/ptx/kernel.h"
#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/races.h"
#include "dev/virtual_gpu/ptx/source.h"

namespace virtual_gpu {

// ---- messages ------------------------------------------------------------------------------------------------------

std::string Warp::where(const Op& op, int lane) const {
    const std::string_view text = line_of(block->launch->kernel->source->text, op.line);
    const auto special = [&](Special s) { return bank[2][s * kLanes + lane]; };
    return format("kernel %s, PTX line %u '%.*s', block (%u,%u,%u), thread (%u,%u,%u)",
                  block->launch->kernel->readable.c_str(), op.line, static_cast<int>(text.size()), text.data(),
                  block->id[0], block->id[1], block->id[2], special(kTidX), special(kTidY), special(kTidZ));
}

void Warp::fail(const Op& op, int lane, const char* text, ...) const {
    char buffer[600];
    va_list arguments;
    va_start(arguments, text);
    std::vsnprintf(buffer, sizeof buffer, text, arguments);
    va_end(arguments);
    fault("%s: %s", where(op, lane).c_str(), buffer);
}

void Warp::need_all_lanes(const Op& op, const char* what) const {
    if (mask != kAllLanes) fail(op, first_lane(mask), "%s with %d of 32 lanes", what, count_lanes(mask));
}

OpCounts* Block::counts_of(const Op& op) {
    return counts.empty() ? nullptr : &counts[static_cast<size_t>(&op - code->ops.data())];
}

uint64_t Block::next_random() {  // splitmix64
    uint64_t z = random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

namespace {

// ---- one block -----------------------------------------------------------------------------------------------------

constexpr uint64_t kNoLimit = ~uint64_t{0};

// Runs a warp until it waits, ends, yields, or has executed `limit` instructions.
void run_warp(Warp& w, uint64_t limit) {
    w.yield = false;
    const Op* const ops = w.code->ops.data();
    for (uint64_t n = 0; !w.yield && n < limit; n++) {
        const Op& op = ops[w.pc++];
        uint32_t mask = w.active;
        if (op.predicate >= 0) {
            const uint32_t p = w.predicates[op.predicate];
            mask &= op.negate ? ~p : p;
        }
        if (OpCounts* counts = w.block->counts_of(op)) {
            counts->runs++;
            counts->lanes += static_cast<uint64_t>(count_lanes(mask));
        }
        if (mask == 0) continue;
        w.mask = mask;
        if (w.products) w.products->check(w, op);
        op.execute(w, op);
    }
}

// A warp that asks its mbarrier more often than this while nothing happens in its block waits forever. A warp that does
// other work in between may ask more often.
constexpr uint64_t kMostWaits = 1000;
bool is_stuck(const Warp& w) { return w.waits_failed > kMostWaits && w.seen_events == w.block->events; }

[[noreturn]] void fail_deadlock(const Block& block) {
    std::string who;
    for (const Warp& w : block.warps)
        if (!w.done && !w.waiting)
            who += block.async->describe_wait(w);
        else if (w.waiting)
            who += format(" warp %d at barrier %d (PTX line %u);", w.index, w.barrier,
                          w.code->ops[static_cast<size_t>(w.pc) - 1].line);
    fault("kernel %s, block (%u,%u,%u): every warp waits:%s", block.launch->kernel->readable.c_str(), block.id[0],
          block.id[1], block.id[2], who.c_str());
}

// The index of the n-th warp to run among `count`.
size_t pick(Block& block, size_t n, size_t count) {
    if (options().order == Order::descending) return count - 1 - n;
    return options().order == Order::random ? block.next_random() % count : n;
}

void run_block(Block& block) {
    constexpr uint64_t kMostAtOnce = 64;  // instructions, in random order
    const size_t count = block.warps.size();
    while (true) {
        for (size_t n = 0; n < count; n++) {
            Warp& w = block.warps[pick(block, n, count)];
            if (w.done || w.waiting) continue;
            run_warp(w, block.random ? 1 + block.next_random() % kMostAtOnce : kNoLimit);
            if (!w.done) continue;
            block.events++;
            for (int barrier = 0; barrier < static_cast<int>(block.barriers.size()); barrier++)
                release_barrier(block, barrier);
        }
        bool all_done = true, can_run = false;
        for (const Warp& w : block.warps) {
            all_done &= w.done;
            can_run |= !w.done && !w.waiting && !is_stuck(w);
        }
        if (all_done) return;
        if (!can_run) fail_deadlock(block);
    }
}

// ---- the block of a host thread, reused for one block after the other -----------------------------------------------

void prepare(Block& block, const Launch& launch) {
    const Code& code = *launch.kernel->code;
    block.launch = &launch;
    block.code = &code;
    block.shared_end =
        (launch.dynamic_shared_bytes ? code.dynamic_base : code.shared_end) + launch.dynamic_shared_bytes;
    block.shared.resize(block.shared_end - kSharedBase);
    block.shared_written.resize(block.shared.size());
    block.ranges.assign(code.ops.size(), Range{});
    block.async = code.is_async ? std::make_shared<Async>() : nullptr;
    block.counts.assign(counting() ? code.ops.size() : 0, OpCounts{});
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    block.warps.resize((threads + kLanes - 1) / kLanes);
    for (size_t n = 0; n < block.warps.size(); n++) {
        Warp& w = block.warps[n];
        w.block = &block;
        w.code = &code;
        w.products = nullptr;
        w.index = static_cast<int>(n);
        w.registers.assign(code.register_words, ~0u);
        w.predicate_storage.assign(code.predicates, 0);
        w.predicate_storage[1] = kAllLanes;
        w.specials.assign(size_t{kSpecials} * kLanes, 0);
        w.bank[0] = w.registers.data();
        w.bank[1] = const_cast<uint32_t*>(code.constants.data());
        w.bank[2] = w.specials.data();
        w.predicates = w.predicate_storage.data();
        for (uint32_t lane = 0; lane < kLanes; lane++) {
            const uint32_t thread = static_cast<uint32_t>(n) * kLanes + lane;
            const auto set = [&](Special s, uint32_t value) {
                w.specials[static_cast<size_t>(s) * kLanes + lane] = value;
            };
            set(kTidX, thread % launch.block[0]);
            set(kTidY, thread / launch.block[0] % launch.block[1]);
            set(kTidZ, thread / launch.block[0] / launch.block[1]);
            set(kLane, lane);
            set(kWarpId, static_cast<uint32_t>(n));
            set(kNtidX, launch.block[0]), set(kNtidY, launch.block[1]), set(kNtidZ, launch.block[2]);
            set(kNctaX, launch.grid[0]), set(kNctaY, launch.grid[1]), set(kNctaZ, launch.grid[2]);
        }
    }
}

void start(Block& block, uint64_t index) {
    const Launch& launch = *block.launch;
    block.id[0] = static_cast<uint32_t>(index % launch.grid[0]);
    block.id[1] = static_cast<uint32_t>(index / launch.grid[0] % launch.grid[1]);
    block.id[2] = static_cast<uint32_t>(index / launch.grid[0] / launch.grid[1]);
    block.random = options().order == Order::random ? options().seed * 1000003 + index + 1 : 0;
    std::memset(block.shared.data(), 0xFF, block.shared.size());
    std::memset(block.shared_written.data(), 0, block.shared_written.size());
    block.barriers.fill({});
    block.events = 0;
    if (block.races) block.races->start_block(block);
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    for (Warp& w : block.warps) {
        const uint32_t left = threads - static_cast<uint32_t>(w.index) * kLanes;
        w.alive = w.active = left >= kLanes ? kAllLanes : (1u << left) - 1;
        w.pc = 0;
        w.done = w.waiting = false;
        w.paths.assign(1, {0, -1, w.alive});
        w.copies.clear();
        w.open_group.fill(0);
        w.waits_failed = w.seen_events = 0;
        for (size_t lane = 0; lane < kLanes; lane++)
            for (size_t d = 0; d < 3; d++) w.specials[(kCtaX + d) * kLanes + lane] = block.id[d];
    }
    if (block.async) block.async->start(block);
}

// The index-th block to run among `count`. The random order is i -> i * step + start, a permutation if step and count
// have no common divisor.
uint64_t block_in_order(uint64_t i, uint64_t count) {
    if (options().order == Order::descending) return count - 1 - i;
    if (options().order == Order::ascending) return i;
    uint64_t step = options().seed * 7919 % count + 1;
    while (std::gcd(step, count) != 1) step++;
    return (i * step + options().seed) % count;
}

}  // namespace

void run_grid(const Launch& launch) {
    Kernel& kernel = *launch.kernel;
    if (!kernel.code) kernel.code = decode(kernel);
    const uint64_t count = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    Races* const races = Races::wanted();
    if (races) races->start_launch();
    const int most = races ? 1 : options().threads > 0 ? options().threads : omp_get_max_threads();
    const int threads = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(most), count));
    std::exception_ptr failure;
    std::mutex mutex;
    LaunchCounter counter(launch);
    const std::unique_ptr<Falsifier> falsifier = Falsifier::of(kernel);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local Block block;  // reuses its storage
        prepare(block, launch);
        block.races = races;
        block.last_store = nullptr;
#pragma omp for schedule(dynamic, 1)
        for (uint64_t i = 0; i < count; i++) {
            {
                const std::lock_guard lock(mutex);
                if (failure) continue;
            }
            try {
                LastStore stored;
                if (falsifier) block.last_store = &stored;
                start(block, block_in_order(i, count));
                run_block(block);
                if (block.async) block.async->finish(block);
                if (!falsifier) continue;
                const std::lock_guard lock(mutex);
                falsifier->add(stored, block_in_order(i, count));
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!failure) failure = std::current_exception();
            }
        }
        if (counting()) {
            const std::lock_guard lock(mutex);
            counter.add(block);
        }
    }
    if (failure) std::rethrow_exception(failure);
    if (falsifier) falsifier->falsify();
}

}  // namespace virtual_gpu
