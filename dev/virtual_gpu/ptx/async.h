// The asynchronous instructions that a block has in flight: mbarriers, bulk copies, and products of warpgroups.
//
// Asynchronous work is done as late as the waits allow. A copy is done when a thread would otherwise wait in vain for
// its mbarrier, or waits for its group; a product at the wait for its group. Memory that a program must not touch
// meanwhile is recorded, with the lines of the instructions.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "dev/virtual_gpu/ptx/address.h"
#include "dev/virtual_gpu/ptx/bulk_copy.h"
#include "dev/virtual_gpu/ptx/mbarrier.h"
#include "dev/virtual_gpu/ptx/wgmma.h"

namespace virtual_gpu {

// Ordinary instructions write shared memory through the generic proxy; bulk copies and wgmma read and write it through
// the async proxy. An access through the async proxy sees a write if the writing or the reading thread has executed
// fence.proxy.async since (PTX ISA, "Memory Consistency Model: Proxies"). A fence by a third thread between them would
// also be valid, but is not recognised here.
class Proxies {
public:
    void start(const Block& block);
    void note_write(int thread, uint32_t address, uint32_t bytes, uint32_t line);
    void fence(int thread) { fences_[static_cast<size_t>(thread)] = ++now_; }
    uint32_t now() const { return now_; }
    bool is_fenced_since(int thread, uint32_t epoch) const { return fences_[static_cast<size_t>(thread)] > epoch; }
    // Fails the warp if writes of `bytes` bytes at a shared address are not visible to the operation that a lane
    // starts. `what` describes that operation: "wgmma reads".
    void check(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes, const char* what) const;
    void forget(uint32_t address, uint32_t bytes);  // these bytes are now written through the async proxy

private:
    struct Word {
        uint32_t epoch = 0, line = 0;  // line 0 if not written
        int thread = 0;
    };
    uint32_t now_ = 1;
    std::vector<Word> words_;
    std::vector<uint32_t> fences_;  // the most recent fence, by thread
};

class Async {
public:
    void start(Block& block);
    void finish(Block& block);  // called after its last warp; nothing may be in flight
    // Fails the warp if a lane writes `bytes` bytes at a shared address that products still read. `what` describes the
    // write.
    void check_products(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes,
                        const char* what) const;
    // Checks generic writes of shared memory by the active lanes before they happen.
    void note_write(Warp& w, const Op& op, const Addresses& to, uint32_t bytes);
    std::string describe_wait(const Warp& w) const;  // for a warp that asks an mbarrier in vain

    MBarriers barriers;
    Proxies proxies;
    BulkCopies copies;
    std::vector<WarpProducts> products;    // by warp
    std::vector<uint16_t> product_reads;   // the number of products that will read each 16 bytes of shared memory
    std::vector<WarpgroupLog> warpgroups;  // four warps each
    std::vector<int> registers;            // setmaxnreg: registers per thread, by warp, if known
    int registers_in_all = 0;
};

inline int thread_of(const Warp& w, int lane) { return w.index * kLanes + lane; }
inline uint32_t shared_address(const Block& block, const uint8_t* shadow) {
    return static_cast<uint32_t>(shadow - block.shared_written.data()) + kSharedBase;
}

// Called when a warp has asked in vain for something that other threads may do: for an mbarrier's phase (its shared
// address) or something else (0). Lets others run, including its own lanes on other paths.
void wait_in_vain(Warp& w, const Op& op, uint32_t address);

// fence.proxy.async, fence.mbarrier_init
void fence_async(Warp&, const Op&);
void generic_of_parameter(Warp&, const Op&);
void set_max_registers(Warp&, const Op&);
void store_matrix(Warp&, const Op&);

}  // namespace virtual_gpu
