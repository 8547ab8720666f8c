// Bulk copies: cp.async.bulk and cp.async.bulk.tensor (PTX ISA, "Data Movement: Asynchronous copy").
#pragma once
#include <cstdint>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

// Sixteen bytes of a copy. Bytes [first, last) from `global` are in global memory; in a load, the others are zero.
struct BulkPiece {
    uint64_t global = 0;
    uint32_t shared = 0;
    uint8_t first = 0, last = 16;
};
constexpr uint32_t kBulkBytes = 16;

struct BulkCopy {
    bool loads = true;  // true for copies into shared memory
    int warp = 0, lane = 0;
    const Op* op = nullptr;
    uint32_t barrier = 0;   // shared address of a load's mbarrier
    uint32_t group = 0;     // of a store
    bool has_read = false;  // true once a store has read shared memory
    std::vector<BulkPiece> pieces;
    std::vector<uint8_t> bytes;  // read by such a store
    Races::Knowledge known;      // known to its thread, for race detection
    uint32_t size() const { return static_cast<uint32_t>(pieces.size()) * kBulkBytes; }
};

class BulkCopies {
public:
    void start(const Block& block);
    void add(Warp& w, const Op& op, BulkCopy copy);
    bool deliver(Warp& w, uint32_t barrier);              // completes one load of an mbarrier; false if there is none
    void complete_phase(Block& block, uint32_t barrier);  // the loads of this phase may be read now
    void commit(const Warp& w, uint32_t lanes);
    void wait(Warp& w, int lane, uint32_t left, bool only_read);
    void finish(Block& block);
    // Fails the warp if a lane's generic write hits bytes that a copy still reads or writes.
    void check_write(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes) const;
    bool empty() const { return loads_.empty() && stores_.empty(); }

private:
    void read(Block& block, BulkCopy& copy);
    static void write(const Block& block, const BulkCopy& copy);
    void lock(const BulkCopy& copy, int by);
    std::vector<BulkCopy> loads_, delivered_, stores_;
    std::vector<uint32_t> groups_;   // the open group, by thread
    std::vector<uint16_t> readers_;  // stores that read each 16 bytes of shared memory
};

void bulk_copy(Warp&, const Op&);
void bulk_commit(Warp&, const Op&);
void bulk_wait(Warp&, const Op&);

// The kind of a copy in Op::mode.
enum BulkMode : uint8_t { kBulkLoad = 0, kBulkStore = 1 };

}  // namespace virtual_gpu
