// Resolves and checks the addresses of memory instructions (address.h).
#include "dev/virtual_gpu/ptx/address.h"

#include <algorithm>
#include <array>

#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/falsify.h"
#include "dev/virtual_gpu/ptx/races.h"
#include "dev/virtual_gpu/ptx/traffic.h"

namespace virtual_gpu {
namespace {

const char* name_of(Space space) {
    return space == Space::shared ? "shared" : space == Space::global ? "global" : "generic";
}

void fail_misaligned(Warp& w, const Op& op, const uint64_t (&address)[kLanes], uint32_t total, const char* what) {
    for (int i = 0; i < kLanes; i++)
        if (has(w.mask, i) && address[i] % total)
            w.fail(op, i, "misaligned %s of %u bytes at %#llx", what, total,
                   static_cast<unsigned long long>(address[i]));
}

bool is_row(const Warp& w, const uint64_t (&address)[kLanes], uint32_t total) {
    if (address[kLanes - 1] < address[0]) return false;  // the range wraps around
    uint64_t apart = ~w.mask;
    for (uint64_t i = 0; i < kLanes; i++) apart |= address[i] ^ (address[0] + i * total);
    return apart == 0;
}

void resolve_shared(Warp& w, const Op& op, const uint64_t (&address)[kLanes], uint64_t low, uint64_t high,
                    uint32_t total, const char* what, Addresses& to) {
    const uint32_t end = w.block->shared_end;
    const uint64_t last = uint64_t{end} - total;  // not address + total, which may wrap around
    if (low < kSharedBase || high > last)
        for (int i = 0; i < kLanes; i++)
            if (has(w.mask, i) && (address[i] < kSharedBase || address[i] > last))
                w.fail(op, i, "%s of %u bytes at shared %lld; the block has %u", what, total,
                       static_cast<long long>(address[i]) - kSharedBase, end - kSharedBase);
    for (int i = 0; i < kLanes; i++) {
        to.bytes[i] = w.block->shared_bytes(static_cast<uint32_t>(address[i]));
        to.written[i] = w.block->shared_shadow(static_cast<uint32_t>(address[i]));
    }
    to.is_shared = true;
    if (OpCounts* counts = w.block->counts_of(op)) count_shared(address, w.mask, total, *counts);
}

// For lanes in different allocations, which is rare.
void resolve_apart(Warp& w, const Op& op, const uint64_t (&address)[kLanes], Space space, uint32_t total,
                   const char* what, Addresses& to, Range& last) {
    static std::array<uint8_t, 32> always_written = [] {  // pinned memory belongs to the host
        std::array<uint8_t, 32> bytes;
        bytes.fill(kWritten);
        return bytes;
    }();
    Memory& memory = Memory::get();
    for (int i = 0; i < kLanes; i++) {
        if (!has(w.mask, i)) continue;
        Range range;
        if (!memory.find(address[i], total, range))
            w.fail(op, i, "%s of %u bytes at %s 0x%llx: %s", what, total, name_of(space),
                   static_cast<unsigned long long>(address[i]), memory.describe(address[i], total).c_str());
        to.bytes[i] = reinterpret_cast<char*>(address[i] + static_cast<uint64_t>(range.shift));
        to.written[i] = range.shift ? memory.written(address[i]) : always_written.data();
        if (range.shift) last = range;
    }
}

void resolve_global(Warp& w, const Op& op, const uint64_t (&address)[kLanes], Space space, uint64_t low, uint64_t high,
                    uint32_t total, const char* what, Addresses& to) {
    Memory& memory = Memory::get();
    Block& block = *w.block;
    if (const uint64_t now = memory.generation(); now != block.generation) {
        std::fill(block.ranges.begin(), block.ranges.end(), Range{});
        block.generation = now;
    }
    Range& range = block.ranges[static_cast<size_t>(&op - block.code->ops.data())];
    if (low < range.begin || high > range.end || range.end - high < total) {
        resolve_apart(w, op, address, space, total, what, to, range);
        to.is_row = false;
    } else {
        const uint64_t shift = static_cast<uint64_t>(range.shift);
        uint8_t* const written = memory.written(0);
        for (int i = 0; i < kLanes; i++) {
            to.bytes[i] = reinterpret_cast<char*>(address[i] + shift);
            to.written[i] = written + address[i];
        }
    }
    to.is_shared = false;
    if (OpCounts* counts = block.counts_of(op)) count_global(address, w.mask, total, *counts);
}

}  // namespace

void resolve(Warp& w, const Op& op, uint32_t total, const char* what, Addresses& to) {
    uint64_t address[kLanes];
    if (!op.has_base) {
        for (int i = 0; i < kLanes; i++) address[i] = static_cast<uint64_t>(op.immediate);
    } else if (op.wide_base) {
        const uint64_t* const base = w.at<const uint64_t>(op.at[kBase]);
        for (int i = 0; i < kLanes; i++) address[i] = base[i] + static_cast<uint64_t>(op.immediate);
    } else {
        const uint32_t* const base = w.at<const uint32_t>(op.at[kBase]);
        for (int i = 0; i < kLanes; i++)
            address[i] = static_cast<uint32_t>(base[i] + static_cast<uint32_t>(op.immediate));
    }
    resolve(w, op, address, op.space, total, what, to);
}

void resolve(Warp& w, const Op& op, uint64_t (&address)[kLanes], Space space, uint32_t total, const char* what,
             Addresses& to) {
    const uint32_t mask = w.mask;
    uint64_t low = address[0], high = address[kLanes - 1], bits = address[0];
    to.is_row = is_row(w, address, total);
    if (!to.is_row) {
        low = ~uint64_t{0}, high = 0, bits = 0;
        for (int i = 0; i < kLanes; i++) {
            const bool here = mask >> i & 1;
            low = here && address[i] < low ? address[i] : low;
            high = here && address[i] > high ? address[i] : high;
            bits |= here ? address[i] : 0;
        }
    }
    if (bits & (total - 1)) fail_misaligned(w, op, address, total, what);
    if (space == Space::generic && low >= kSharedWindow && high < kSharedWindow + (1 << 24)) {
        space = Space::shared;
        for (int i = 0; i < kLanes; i++) address[i] -= kSharedWindow;
        low -= kSharedWindow;
        high -= kSharedWindow;
    }
    if (space == Space::shared)
        resolve_shared(w, op, address, low, high, total, what, to);
    else
        resolve_global(w, op, address, space, low, high, total, what, to);
}

void note_read(Warp& w, const Op& op, const Addresses& at, uint32_t bytes) {
    Block& block = *w.block;
    if (block.races) block.races->note(w, op, at, bytes, Access::read);
}
void note_write(Warp& w, const Op& op, const Addresses& at, uint32_t bytes) {
    Block& block = *w.block;
    if (block.last_store && !at.is_shared) block.last_store->note(at, w.mask, bytes);
    if (block.async && at.is_shared) block.async->note_write(w, op, at, bytes);
    if (block.races) block.races->note(w, op, at, bytes, Access::write);
}
void note_atomic(Warp& w, const Op& op, const Addresses& at, uint32_t bytes, bool is_result) {
    Block& block = *w.block;
    if (is_result && block.last_store && !at.is_shared) block.last_store->note(at, w.mask, bytes);
    if (block.async && at.is_shared) block.async->note_write(w, op, at, bytes);
    if (block.races) block.races->note(w, op, at, bytes, Access::atomic);
}

void fail_unwritten(Warp& w, const Op& op, int lane, const Addresses& at, uint32_t total, const char* what) {
    uint32_t byte = 0;
    while (byte + 1 < total && at.written[lane][byte] == kWritten) byte++;
    const uint8_t state = at.written[lane][byte];
    const char* const why = state == kPending  ? "of an asynchronous copy that has not been waited for"
                            : state == kOpaque ? "of an mbarrier"
                                               : "that was never written";
    w.fail(op, lane, "%s of %u bytes of %s memory, the %u. of which is one %s", what, total,
           at.is_shared ? "shared" : "global", byte + 1, why);
}

}  // namespace virtual_gpu
