// mbarrier objects of a block: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". Their 64
// bits are opaque: shared memory only records that a barrier lies there (kOpaque); its state is kept here.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/ptx/races.h"

namespace virtual_gpu {

constexpr uint8_t kOpaque = 3;  // a flag of a byte of shared memory, like kWritten and kPending
constexpr uint32_t kBarrierBytes = 8;
constexpr int64_t kMostCount = (1 << 20) - 1;  // limit of arrivals and of bytes ("Contents of the mbarrier object")

struct MBarrier {
    uint32_t expected = 0, pending = 0;  // arrivals
    int64_t bytes = 0;                   // the tx-count
    uint32_t phase = 0;                  // the phase that has not completed
    uint32_t line = 0;                   // of its init instruction
    uint32_t epoch = 0;                  // of its init, in the count of Proxies
    int thread = 0;                      // that initialised it
    bool fenced = false;                 // by fence.mbarrier_init
    Races::Moment init;                  // when it was initialised, for race detection
    // Knowledge of the threads that arrived in this phase, and in completed phases.
    Races::Knowledge arriving, released;
    std::string describe() const;
};

class MBarriers {
public:
    void start() { all_.clear(); }
    // Fails the warp if there is no barrier.
    MBarrier& at(const Warp& w, const Op& op, int lane, uint32_t address);
    // Change the counts. The phase completes when nothing is pending.
    void arrive(Warp& w, const Op& op, int lane, uint32_t address, uint32_t count);
    void expect(Warp& w, const Op& op, int lane, uint32_t address, int64_t bytes);  // negative: bytes have arrived
    std::map<uint32_t, MBarrier>& all() { return all_; }
    const std::map<uint32_t, MBarrier>& all_of() const { return all_; }

private:
    void complete_phase(Warp& w, uint32_t address, MBarrier& b);
    std::map<uint32_t, MBarrier> all_;  // by shared address
};

// The instructions. at[0] is the result, at[1] the operand after the address. Op::mode 1: arrive.expect_tx.
void mbarrier_init(Warp&, const Op&);
void mbarrier_arrive(Warp&, const Op&);
void mbarrier_wait(Warp&, const Op&);  // try_wait.parity
void mbarrier_pass(Warp&, const Op&);  // a wait that VIRTUAL_GPU_LOSE removes: it finds its phase complete

}  // namespace virtual_gpu
