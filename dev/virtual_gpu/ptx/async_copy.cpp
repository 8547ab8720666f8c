// cp.async: PTX ISA, "Data Movement: Asynchronous copy". The bytes move at the wait. Until then the destination counts
// as not written and contains 0xFF.
#include <algorithm>
#include <cstring>

#include "dev/virtual_gpu/ptx/address.h"
#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/instructions.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

// at[kBase] with Op::immediate is the destination, at[0] the source, at[1] the offset of the source, at[2] the number
// of bytes to read; the rest becomes zero.
void async_copy(Warp& w, const Op& op) {
    Addresses to, from;
    resolve(w, op, op.size, "cp.async's store", to);
    const uint64_t *base = w.at<const uint64_t>(op.at[0]), *offset = w.at<const uint64_t>(op.at[1]);
    const uint32_t* const wanted = w.at<const uint32_t>(op.at[2]);
    uint64_t source[kLanes];
    uint32_t reading = 0;
    for (int i = 0; i < kLanes; i++) {
        source[i] = base[i] + offset[i];
        if (has(w.mask, i) && wanted[i] > op.size) w.fail(op, i, "cp.async of %u bytes reads %u", op.size, wanted[i]);
        reading |= (has(w.mask, i) && wanted[i] > 0 ? 1u : 0u) << i;
    }
    const uint32_t all = w.mask;
    w.mask = reading;  // lanes that need no bytes read none
    if (reading) {
        resolve(w, op, source, Space::global, op.size, "cp.async's load", from);
        note_read(w, op, from, op.size);
    }
    for (uint32_t left = reading; left; left &= left - 1) {
        const int i = first_lane(left);
        const bool written =
            std::all_of(from.written[i], from.written[i] + wanted[i], [](uint8_t b) { return b == kWritten; });
        if (!written) fail_unwritten(w, op, i, from, wanted[i], "cp.async's load");
    }
    w.mask = all;
    note_write(w, op, to, op.size);
    for (uint32_t left = all; left; left &= left - 1) {
        const int i = first_lane(left);
        std::memset(to.bytes[i], 0xFF, op.size);
        std::memset(to.written[i], kPending, op.size);
        const uint32_t address = static_cast<uint32_t>(to.bytes[i] - w.block->shared_bytes(kSharedBase)) + kSharedBase;
        w.copies.push_back({i, w.open_group[static_cast<size_t>(i)], address, has(reading, i) ? from.bytes[i] : nullptr,
                            wanted[i], op.size});
    }
}

void async_commit(Warp& w, const Op&) {
    for (int i = 0; i < kLanes; i++) w.open_group[static_cast<size_t>(i)] += has(w.mask, i) ? 1 : 0;
}

void async_wait(Warp& w, const Op& op) {
    size_t kept = 0;
    for (const Warp::Copy& c : w.copies) {
        const bool is_due = op.immediate < 0 ||
                            c.group + static_cast<uint32_t>(op.immediate) < w.open_group[static_cast<size_t>(c.lane)];
        if (!has(w.mask, c.lane) || !is_due) {
            w.copies[kept++] = c;
            continue;
        }
        char* const to = w.block->shared_bytes(c.to);
        std::memset(to, 0, c.size);
        if (c.from) std::memcpy(to, c.from, c.bytes);
        std::memset(w.block->shared_shadow(c.to), kWritten, c.size);
        if (w.block->async) w.block->async->proxies.note_write(w.index * kLanes + c.lane, c.to, c.size, op.line);
        if (w.block->races) w.block->races->note_shared_write(w, op, c.lane, c.to, c.size);
    }
    w.copies.resize(kept);
}

}  // namespace virtual_gpu
