// mbarrier objects of a block: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". Their 64
// bits are opaque: shared memory only keeps that a barrier lies there (kOpaque), what it counts is kept here.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

constexpr uint8_t kOpaque = 3;  // of a byte of shared memory: as kWritten, kPending
constexpr uint32_t kBarrierBytes = 8;
constexpr int64_t kMostCount = (1 << 20) - 1;  // of arrivals and of bytes ("Contents of the mbarrier object")

struct MBarrier {
    uint32_t expected = 0, pending = 0;   // arrivals
    int64_t bytes = 0;                    // the tx-count
    uint32_t phase = 0;                   // the one that has not completed
    uint32_t line = 0;                    // of its init
    uint32_t epoch = 0;                   // of that, as Proxies counts
    int thread = 0;                       // that did it
    bool fenced = false;                  // by fence.mbarrier_init
    Races::Moment init;                   // for the search for races: when it was made
    Races::Knowledge arriving, released;  // of those who arrived in this phase, and in those that have completed
    std::string describe() const;
};

class MBarriers {
public:
    void start() { all_.clear(); }
    // Fail the warp where there is no barrier.
    MBarrier& at(const Warp& w, const Op& op, int lane, uint32_t address);
    // Changes of the counts: the phase completes where nothing is left.
    void arrive(Warp& w, const Op& op, int lane, uint32_t address, uint32_t count);
    void expect(Warp& w, const Op& op, int lane, uint32_t address, int64_t bytes);  // less than 0: they are complete
    std::map<uint32_t, MBarrier>& all() { return all_; }
    const std::map<uint32_t, MBarrier>& all_of() const { return all_; }

private:
    void complete_phase(Warp& w, uint32_t address, MBarrier& b);
    std::map<uint32_t, MBarrier> all_;  // by shared address
};

// The instructions. at[0] the result, at[1] the operand behind the address; Op::count 0: the result is dropped.
enum MBarrierMode : uint8_t { kExpect = 1, kNoComplete = 2, kDrop = 4, kParity = 8 };
void mbarrier_init(Warp&, const Op&);
void mbarrier_invalidate(Warp&, const Op&);
void mbarrier_arrive(Warp&, const Op&);
void mbarrier_transaction(Warp&, const Op&);  // expect_tx, and without kExpect complete_tx
void mbarrier_wait(Warp&, const Op&);         // test_wait and try_wait
void mbarrier_pending_count(Warp&, const Op&);

}  // namespace virtual_gpu
