// Bulk copies: bookkeeping of copies in flight, and their instructions (bulk_copy.h).
#include "dev/virtual_gpu/ptx/bulk_copy.h"

#include <algorithm>
#include <cstring>

#include "dev/virtual_gpu/ptx/async.h"
#include "dev/virtual_gpu/ptx/decoder.h"
#include "dev/virtual_gpu/ptx/falsify.h"
#include "dev/virtual_gpu/ptx/races.h"
#include "dev/virtual_gpu/ptx/tensor_map.h"

namespace virtual_gpu {
namespace {

constexpr const char* kWhat = "bulk copy";

// The bytes of a piece in global memory, and their flags.
char* bytes_of(uint64_t address, uint8_t*& written) {
    static uint8_t always_written[kBulkBytes] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};  // for pinned memory
    Range range;
    if (!Memory::get().find(address, range)) fault("a bulk copy's memory was freed while it was under way");
    written = range.shift ? Memory::get().written(address) : always_written;
    return reinterpret_cast<char*>(address + static_cast<uint64_t>(range.shift));
}

// Records a lane's access for race detection, word by word.
void note(Warp& w, const Op& op, int lane, char* bytes, uint8_t* written, uint32_t count, bool is_shared,
          Access access) {
    const uint32_t mask = w.mask;
    w.mask = 1u << lane;
    for (uint32_t b = 0; b < count;) {
        const uint32_t step = std::min(count - b, 4 - static_cast<uint32_t>(reinterpret_cast<uint64_t>(bytes + b) % 4));
        Addresses at;
        at.is_shared = is_shared;
        at.bytes[lane] = bytes + b;
        at.written[lane] = written + b;
        w.block->races->note(w, op, at, step, access);
        b += step;
    }
    w.mask = mask;
}
void note_races(Warp& w, const Op& op, const BulkCopy& copy) {
    if (!w.block->races) return;
    for (const BulkPiece& p : copy.pieces) {
        note(w, op, copy.lane, w.block->shared_bytes(p.shared), w.block->shared_shadow(p.shared), kBulkBytes, true,
             copy.loads ? Access::write : Access::read);
        if (p.first >= p.last) continue;
        uint8_t* written;
        char* const bytes = bytes_of(p.global + p.first, written);
        note(w, op, copy.lane, bytes, written, p.last - p.first, false, copy.loads ? Access::read : Access::write);
    }
}

}  // namespace

// ---- what is under way ---------------------------------------------------------------------------------------------

void BulkCopies::start(const Block& block) {
    loads_.clear();
    delivered_.clear();
    stores_.clear();
    groups_.assign(block.warps.size() * kLanes, 0);
    readers_.assign(block.shared.size() / kBulkBytes + 1, 0);
}

void BulkCopies::lock(const BulkCopy& copy, int by) {
    for (const BulkPiece& p : copy.pieces)
        readers_[(p.shared - kSharedBase) / kBulkBytes] =
            static_cast<uint16_t>(readers_[(p.shared - kSharedBase) / kBulkBytes] + by);
}

void BulkCopies::check_write(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes) const {
    const auto meets = [&](const BulkCopy& copy) {
        return std::any_of(copy.pieces.begin(), copy.pieces.end(), [&](const BulkPiece& p) {
            return p.shared < address + bytes && address < p.shared + kBulkBytes;
        });
    };
    const auto check = [&](const std::vector<BulkCopy>& copies, const char* does) {
        for (const BulkCopy& copy : copies)
            if (!copy.has_read && meets(copy))
                w.fail(op, lane, "a write to shared %u, which the bulk copy of PTX line %u may still %s",
                       address - kSharedBase, copy.op->line, does);
    };
    const uint8_t* const shadow = w.block->shared_shadow(address);
    if (std::find(shadow, shadow + bytes, kPending) != shadow + bytes) {
        check(loads_, "write");
        check(delivered_, "write");
    }
    bool read = false;
    for (uint32_t b = 0; b < bytes; b++) read |= readers_[(address + b - kSharedBase) / kBulkBytes] > 0;
    if (read) check(stores_, "read");
}

void BulkCopies::add(Warp& w, const Op& op, BulkCopy copy) {
    Block& block = *w.block;
    Async& async = *block.async;
    for (const BulkPiece& p : copy.pieces) {
        uint8_t* const shadow = block.shared_shadow(p.shared);
        const uint32_t at = p.shared - kSharedBase;
        if (copy.loads) {
            check_write(w, op, copy.lane, p.shared, kBulkBytes);
            if (std::find(shadow, shadow + kBulkBytes, kOpaque) != shadow + kBulkBytes)
                w.fail(op, copy.lane, "a bulk copy to shared %u, where an mbarrier lies", at);
            if (w.products) async.check_products(w, op, copy.lane, p.shared, kBulkBytes, "bulk copy");
            async.proxies.check(w, op, copy.lane, p.shared, kBulkBytes, "bulk copy writes over");
            async.proxies.forget(p.shared, kBulkBytes);
        } else {
            for (uint32_t b = 0; b < kBulkBytes; b++)
                if (shadow[b] != kWritten)
                    w.fail(op, copy.lane, "a bulk copy from shared %u, a byte %s", at + b,
                           shadow[b] == kPending ? "of an asynchronous copy that has not been waited for"
                                                 : "that was never written");
            async.proxies.check(w, op, copy.lane, p.shared, kBulkBytes, "bulk copy reads");
        }
    }
    note_races(w, op, copy);
    if (copy.loads) {
        if (block.races) block.races->release_to(w, 1u << copy.lane, copy.known);
        for (const BulkPiece& p : copy.pieces) {
            std::memset(block.shared_bytes(p.shared), 0xFF, kBulkBytes);
            std::memset(block.shared_shadow(p.shared), kPending, kBulkBytes);
        }
        loads_.push_back(std::move(copy));
    } else {
        copy.group = groups_[static_cast<size_t>(thread_of(w, copy.lane))];
        lock(copy, 1);
        for (const BulkPiece& p : copy.pieces) {
            if (p.first >= p.last) continue;
            uint8_t* written;
            bytes_of(p.global + p.first, written);
            std::memset(written, kPending, static_cast<size_t>(p.last - p.first));
        }
        stores_.push_back(std::move(copy));
    }
}

bool BulkCopies::deliver(Warp& w, uint32_t barrier) {
    std::vector<size_t> candidates;
    for (size_t n = 0; n < loads_.size(); n++)
        if (loads_[n].barrier == barrier) candidates.push_back(n);
    if (candidates.empty()) return false;
    Block& block = *w.block;
    const size_t n = candidates[block.random ? block.next_random() % candidates.size() : 0];
    BulkCopy copy = std::move(loads_[n]);
    loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(n));
    Warp& issuer = block.warps[static_cast<size_t>(copy.warp)];
    const Op& op = *copy.op;
    for (const BulkPiece& p : copy.pieces) {
        char* const to = block.shared_bytes(p.shared);
        std::memset(to, 0, kBulkBytes);
        if (p.first >= p.last) continue;
        const size_t count = static_cast<size_t>(p.last - p.first);
        uint8_t* written;
        const char* const from = bytes_of(p.global + p.first, written);
        if (std::any_of(written, written + count, [](uint8_t b) { return b != kWritten; }))
            issuer.fail(op, copy.lane, "a bulk copy of global 0x%llx, of which bytes were never written",
                        static_cast<unsigned long long>(p.global + p.first));
        std::memcpy(to + p.first, from, count);
    }
    MBarrier& b = block.async->barriers.at(issuer, op, copy.lane, barrier);
    if (block.races) Races::join(b.arriving, copy.known);
    const int64_t size = copy.size();
    const int lane = copy.lane;
    delivered_.push_back(std::move(copy));
    block.async->barriers.expect(issuer, op, lane, barrier, -size);
    return true;
}

void BulkCopies::complete_phase(Block& block, uint32_t barrier) {
    std::erase_if(delivered_, [&](const BulkCopy& copy) {
        if (copy.barrier != barrier) return false;
        for (const BulkPiece& p : copy.pieces) std::memset(block.shared_shadow(p.shared), kWritten, kBulkBytes);
        return true;
    });
}

void BulkCopies::commit(const Warp& w, uint32_t lanes) {
    for (uint32_t left = lanes; left; left &= left - 1) groups_[static_cast<size_t>(thread_of(w, first_lane(left)))]++;
}

void BulkCopies::read(Block& block, BulkCopy& copy) {
    if (copy.has_read) return;
    for (const BulkPiece& p : copy.pieces) {
        const char* const from = block.shared_bytes(p.shared);
        copy.bytes.insert(copy.bytes.end(), from, from + kBulkBytes);
    }
    copy.has_read = true;
    lock(copy, -1);
}

void BulkCopies::write(const Block& block, const BulkCopy& copy) {
    for (size_t n = 0; n < copy.pieces.size(); n++) {
        const BulkPiece& p = copy.pieces[n];
        if (p.first >= p.last) continue;
        uint8_t* written;
        char* const to = bytes_of(p.global + p.first, written);
        std::memcpy(to, copy.bytes.data() + n * kBulkBytes + p.first, static_cast<size_t>(p.last - p.first));
        std::memset(written, kWritten, static_cast<size_t>(p.last - p.first));
        if (block.last_store) block.last_store->note(p.global + p.first, static_cast<uint32_t>(p.last - p.first));
    }
}

void BulkCopies::wait(Warp& w, int lane, uint32_t left, bool only_read) {
    const uint32_t open = groups_[static_cast<size_t>(thread_of(w, lane))];
    std::erase_if(stores_, [&](BulkCopy& copy) {
        if (copy.warp != w.index || copy.lane != lane || uint64_t{copy.group} + left >= open) return false;
        read(*w.block, copy);
        if (!only_read) write(*w.block, copy);
        return !only_read;
    });
}

void BulkCopies::finish(Block& block) {
    for (const auto* loads : {&loads_, &delivered_})
        if (!loads->empty()) {
            const BulkCopy& copy = loads->front();
            block.warps[static_cast<size_t>(copy.warp)].fail(
                *copy.op, copy.lane, "the block ends while this bulk copy may still write its shared memory");
        }
    for (const BulkCopy& copy : stores_)
        if (!copy.has_read)
            block.warps[static_cast<size_t>(copy.warp)].fail(
                *copy.op, copy.lane, "the block ends while this bulk copy may still read its shared memory");
    for (const BulkCopy& copy : stores_) write(block, copy);
    stores_.clear();
}

// ---- instructions --------------------------------------------------------------------------------------------------

namespace {

// The instruction's list of operands: shared address, global address or tensor map, then the place of the size or the
// coordinates, and for a load the mbarrier.
constexpr size_t kAddressWords = 3, kRest = 2 * kAddressWords;

uint32_t shared_operand(const Warp& w, const Op& op, int lane, uint64_t address, uint32_t align, uint64_t bytes,
                        const char* what) {
    if (address >= kSharedWindow && address < kSharedWindow + (1 << 24)) address -= kSharedWindow;
    const Block& block = *w.block;
    if (address % align)
        w.fail(op, lane, "%s at shared %lld, which is not aligned to %u bytes", what,
               static_cast<long long>(address) - kSharedBase, align);
    if (address < kSharedBase || address > block.shared_end || bytes > block.shared_end - address)
        w.fail(op, lane, "%s of %llu bytes at shared %lld; the block has %u", what,
               static_cast<unsigned long long>(bytes), static_cast<long long>(address) - kSharedBase,
               block.shared_end - kSharedBase);
    return static_cast<uint32_t>(address);
}

void check_global(const Warp& w, const Op& op, int lane, uint64_t address, uint64_t bytes) {
    Range range;
    if (!Memory::get().find(address, bytes, range))
        w.fail(op, lane, "bulk copy of %llu bytes at global 0x%llx: %s", static_cast<unsigned long long>(bytes),
               static_cast<unsigned long long>(address), Memory::get().describe(address, bytes).c_str());
}

void add_plain(Warp& w, const Op& op, int lane, BulkCopy& copy) {
    const auto& list = w.code->lists[static_cast<size_t>(op.list)];
    const uint32_t size = w.at<const uint32_t>(list[kRest])[lane];
    if (size % kBulkBytes) w.fail(op, lane, "bulk copy of %u bytes, which is no multiple of 16", size);
    const uint32_t shared = shared_operand(w, op, lane, address_at(w, list, 0, lane), kBulkBytes, size, kWhat);
    const uint64_t global = address_at(w, list, kAddressWords, lane);
    if (global % kBulkBytes)
        w.fail(op, lane, "bulk copy at global 0x%llx, which is not aligned to 16 bytes",
               static_cast<unsigned long long>(global));
    if (size) check_global(w, op, lane, global, size);
    for (uint32_t b = 0; b < size; b += kBulkBytes) copy.pieces.push_back({global + b, shared + b, 0, kBulkBytes});
}

TensorMap read_tensor_map(const Warp& w, const Op& op, int lane, uint64_t address) {
    TensorMap map;
    if (address % 64)
        w.fail(op, lane, "a tensor map at 0x%llx, which is not aligned to 64 bytes",
               static_cast<unsigned long long>(address));
    const auto& parameters = w.block->launch->parameters;
    if (address >= kParameterWindow && address < kParameterWindow + parameters.size()) {
        const size_t offset = address - kParameterWindow;
        if (parameters.size() - offset < kTensorMapBytes) w.fail(op, lane, "a tensor map past the parameters' end");
        std::memcpy(static_cast<void*>(&map), parameters.data() + offset, kTensorMapBytes);
    } else {
        try {
            const void* const at = reinterpret_cast<const void*>(address);
            std::memcpy(static_cast<void*>(&map), Memory::get().readable(at, kTensorMapBytes, "a tensor map"),
                        kTensorMapBytes);
        } catch (const Fault& why) {
            w.fail(op, lane, "%s", why.what());
        }
    }
    if (map.mark != kTensorMapMark) w.fail(op, lane, "no tensor map of cuTensorMapEncodeTiled is there");
    return map;
}

// Adds a row of a box, which lies along the innermost dimension. `from` is the address of its first element, even if
// that is outside the tensor.
void add_row(const TensorMap& map, int64_t x, bool inside, uint64_t from, uint32_t to, BulkCopy& copy) {
    const int64_t row = int64_t{map.box[0]} * map.element_bytes;
    const int64_t first = std::clamp<int64_t>(-x * map.element_bytes, 0, row);
    const int64_t last = std::clamp<int64_t>((static_cast<int64_t>(map.size[0]) - x) * map.element_bytes, first, row);
    for (int64_t b = 0; b < row; b += kBulkBytes) {
        BulkPiece p{from + static_cast<uint64_t>(b), swizzled(to + static_cast<uint32_t>(b), map.swizzle_bytes), 0, 0};
        if (inside) {
            p.first = static_cast<uint8_t>(std::clamp<int64_t>(first - b, 0, kBulkBytes));
            p.last = static_cast<uint8_t>(std::clamp<int64_t>(last - b, 0, kBulkBytes));
        }
        copy.pieces.push_back(p);
    }
}

void add_tensor(Warp& w, const Op& op, int lane, BulkCopy& copy) {
    const auto& list = w.code->lists[static_cast<size_t>(op.list)];
    const TensorMap map = read_tensor_map(w, op, lane, address_at(w, list, kAddressWords, lane));
    const size_t rank = map.rank;
    if (rank != op.count) w.fail(op, lane, "a tensor map of %zu dimensions in a copy of %d", rank, op.count);
    const uint32_t row = uint32_t{map.box[0]} * map.element_bytes;
    if (map.swizzle_bytes && row != map.swizzle_bytes)
        w.fail(op, lane, "not known here: rows of %u bytes with a swizzle of %d", row, map.swizzle_bytes);
    uint64_t rows = 1;
    int64_t start[5];
    for (size_t d = 0; d < rank; d++) {
        start[d] = w.at<const int32_t>(list[kRest + d])[lane];
        if (d > 0) rows *= map.box[d];
    }
    constexpr uint32_t kAlign = 128;  // PTX ISA, "cp.async.bulk.tensor"
    const uint32_t shared = shared_operand(w, op, lane, address_at(w, list, 0, lane), kAlign, rows * row, kWhat);
    for (uint64_t n = 0; n < rows; n++) {
        uint64_t from = map.address + static_cast<uint64_t>(start[0] * map.element_bytes), left = n;
        bool inside = true;
        for (size_t d = 1; d < rank; d++) {
            const int64_t at = start[d] + static_cast<int64_t>(left % map.box[d]);
            left /= map.box[d];
            inside &= at >= 0 && at < static_cast<int64_t>(map.size[d]);
            from += static_cast<uint64_t>(at) * map.stride[d];
        }
        const size_t begin = copy.pieces.size();
        add_row(map, start[0], inside, from, shared + static_cast<uint32_t>(n) * row, copy);
        for (size_t p = begin; p < copy.pieces.size(); p++)
            if (const BulkPiece& piece = copy.pieces[p]; piece.first < piece.last)
                check_global(w, op, lane, piece.global + piece.first, static_cast<uint64_t>(piece.last - piece.first));
    }
}

// A copy moves sectors of 32 bytes, like other accesses (traffic.h).
void count(const BulkCopy& copy, OpCounts& counts) {
    constexpr uint64_t kSector = 32;
    uint64_t last = ~uint64_t{0};
    counts.requests++;
    for (const BulkPiece& p : copy.pieces) {
        if (p.first >= p.last) continue;
        counts.bytes += static_cast<uint64_t>(p.last - p.first);
        for (uint64_t s = (p.global + p.first) / kSector; s <= (p.global + p.last - 1) / kSector; s++)
            if (s != last) counts.sectors++, last = s;
    }
}

void use_barrier(Warp& w, const Op& op, int lane, BulkCopy& copy) {
    const auto& list = w.code->lists[static_cast<size_t>(op.list)];
    Async& async = *w.block->async;
    copy.barrier = shared_operand(w, op, lane, address_at(w, list, list.size() - kAddressWords, lane), kBarrierBytes,
                                  kBarrierBytes, "mbarrier");
    const MBarrier& b = async.barriers.at(w, op, lane, copy.barrier);
    const bool seen = b.fenced || async.proxies.is_fenced_since(b.thread, b.epoch) ||
                      async.proxies.is_fenced_since(thread_of(w, lane), b.epoch);
    if (!seen)
        w.fail(
            op, lane,
            "the mbarrier's init (PTX line %u) has no fence.mbarrier_init or fence.proxy.async behind it, which makes "
            "it visible to bulk copies",
            b.line);
}

}  // namespace

void bulk_copy(Warp& w, const Op& op) {
    for (uint32_t left = w.mask; left; left &= left - 1) {
        const int lane = first_lane(left);
        BulkCopy copy;
        copy.loads = op.mode == kBulkLoad;
        copy.warp = w.index;
        copy.lane = lane;
        copy.op = &op;
        if (copy.loads) use_barrier(w, op, lane, copy);
        if (op.count)
            add_tensor(w, op, lane, copy);
        else
            add_plain(w, op, lane, copy);
        if (OpCounts* counts = w.block->counts_of(op)) count(copy, *counts);
        w.block->async->copies.add(w, op, std::move(copy));
    }
}

void bulk_commit(Warp& w, const Op&) { w.block->async->copies.commit(w, w.mask); }

void bulk_wait(Warp& w, const Op& op) {
    for (uint32_t left = w.mask; left; left &= left - 1)
        w.block->async->copies.wait(w, first_lane(left), static_cast<uint32_t>(op.immediate), op.mode == 1);
}

}  // namespace virtual_gpu
