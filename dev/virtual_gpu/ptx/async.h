// What a block's asynchronous instructions have under way: mbarriers, bulk copies, products of warpgroups.
//
// Asynchronous work is done as late as the waits allow: a copy when a thread would wait in vain for its mbarrier or
// waits for its group, a product at the wait for its group. What a program must not touch meanwhile is kept, with the
// lines.
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

// Shared memory is written through the generic proxy; bulk copies and wgmma read and write it through the async proxy.
// A write comes before what is done there if its thread or the reading one has executed fence.proxy.async since (PTX
// ISA, "Memory Consistency Model: Proxies"; a fence by a third thread between them would do as well and is not known
// here).
class Proxies {
public:
    void start(const Block& block);
    void note_write(int thread, uint32_t address, uint32_t bytes, uint32_t line);
    void fence(int thread) { fences_[static_cast<size_t>(thread)] = ++now_; }
    uint32_t now() const { return now_; }
    bool is_fenced_since(int thread, uint32_t epoch) const { return fences_[static_cast<size_t>(thread)] > epoch; }
    // Fails the warp where writes of `bytes` at a shared address do not come before what a lane of it starts; `what`
    // says what that does: "wgmma reads".
    void check(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes, const char* what) const;
    void forget(uint32_t address, uint32_t bytes);  // they are written through the async proxy now

private:
    struct Word {
        uint32_t epoch = 0, line = 0;  // line 0: not written
        int thread = 0;
    };
    uint32_t now_ = 1;
    std::vector<Word> words_;
    std::vector<uint32_t> fences_;  // by thread: the last one
};

// barrier.cluster of clusters of one block: all its threads.
class ClusterBarrier {
public:
    void start(const Block& block);
    void arrive(Warp& w, const Op& op);
    uint32_t passed(Warp& w, const Op& op);  // the active lanes that need not wait any more
    void forget(const Warp& w, uint32_t lanes) { arrived_[static_cast<size_t>(w.index)] &= ~lanes; }

private:
    void complete(const Block& block);
    uint32_t phase_ = 0;
    std::vector<uint32_t> arrived_;           // by warp: lanes that have not waited since
    std::vector<uint32_t> phase_of_arrival_;  // by thread
    Races::Knowledge arriving_, released_;
};

class Async {
public:
    void start(Block& block);
    void finish(Block& block);  // after its last warp: nothing may be under way
    // Fails the warp where products still read `bytes` at a shared address, which a lane writes; `what` says how.
    void check_products(const Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes,
                        const char* what) const;
    // Generic writes of shared memory, of the active lanes, before they are made.
    void note_write(Warp& w, const Op& op, const Addresses& to, uint32_t bytes);
    std::string describe_wait(const Warp& w) const;  // of one that asks an mbarrier in vain

    MBarriers barriers;
    Proxies proxies;
    BulkCopies copies;
    std::vector<WarpProducts> products;    // by warp
    std::vector<uint16_t> product_reads;   // by 16 bytes of shared memory: how many of them will read these
    std::vector<WarpgroupLog> warpgroups;  // four warps each
    std::vector<int> registers;            // by warp, a thread, where they are known: setmaxnreg
    int registers_in_all = 0;
    ClusterBarrier cluster;
};

inline int thread_of(const Warp& w, int lane) { return w.index * kLanes + lane; }
inline uint32_t shared_address(const Block& block, const uint8_t* shadow) {
    return static_cast<uint32_t>(shadow - block.shared_written.data()) + kSharedBase;
}

// A warp asked in vain for what other threads may do: for an mbarrier's phase (its shared address) or something else
// (0). It lets others run, also its own lanes on other paths.
void wait_in_vain(Warp& w, const Op& op, uint32_t address);

// fence.proxy.async, fence.mbarrier_init
void fence_async(Warp&, const Op&);
void cluster_arrive(Warp&, const Op&);
void cluster_wait(Warp&, const Op&);
void map_to_cluster(Warp&, const Op&);
void generic_of_parameter(Warp&, const Op&);
void set_max_registers(Warp&, const Op&);
void elect(Warp&, const Op&);
void store_matrix(Warp&, const Op&);

}  // namespace virtual_gpu
