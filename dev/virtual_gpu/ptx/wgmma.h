// Products of warpgroups, wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

constexpr int kWarpgroup = 4;  // warps
// Records that a warp executes an instruction of its warpgroup. All warps of the group must execute the same sequence
// of such instructions with the same operands; fails the warp otherwise.
void log_of_warpgroup(Warp& w, const Op& op, uint64_t a, uint64_t b);

// The instructions that the warps of a warpgroup executed, in order; they are the same for all.
struct WarpgroupLog {
    struct Entry {
        const Op* op;
        uint64_t a, b;  // descriptors
        int warp;
    };
    std::vector<Entry> entries;
    uint32_t count[kWarpgroup] = {};
};

// A register that a product has not released yet, or that was used since the last wgmma.fence.
struct WatchedRegister {
    uint32_t product = 0;  // the product whose result or input it holds; 0 if none
    uint16_t index = 0;    // its index among the product's results
    bool is_input = false;
    uint32_t line = 0;     // of that product
    uint32_t touched = 0;  // the line that used it last since wgmma.fence; 0 if none
    uint16_t columns = 0;  // N of the products that have accumulated into it since
};

struct Product {
    uint32_t number = 0, group = 0;
    const Op* op = nullptr;
    uint64_t a = 0, b = 0;
    bool accumulates = true;
    std::vector<uint32_t> a_registers;  // 4 x 32 lanes
    struct Input {                      // an addend: known values, or the result of an earlier product
        uint32_t product = 0;
        uint16_t index = 0;
    };
    std::vector<Input> inputs;
    std::vector<float> sums;  // N / 2 registers x 32 lanes
};

class WarpProducts {
public:
    void start(const Warp& w);
    // Called before an instruction that is not a product: fails the warp if it uses a register that is in use by a
    // product.
    void check(Warp& w, const Op& op);
    void add(Warp& w, const Op& op);
    void fence();
    void commit() { open_group_++; }
    void wait(Warp& w, uint32_t left);
    void finish(const Warp& w) const;
    // The product that will still read some of `bytes` bytes at a shared address, or nullptr.
    const Product* reader_of(const Warp& w, uint32_t address, uint32_t bytes) const;

private:
    void check_move(const Warp& w, const Op& op, const std::vector<uint32_t>& registers);
    [[noreturn]] static void fail_watched(const Warp& w, const Op& op, const WatchedRegister& r);
    void check_fenced(const Warp& w, const Op& op, const WatchedRegister& r) const;
    void take_results(Warp& w, const Op& op, const WgmmaShape& s, Product& p);
    void take_a(Warp& w, const Op& op, const WgmmaShape& s, Product& p);
    static void count_reads(const Warp& w, const Product& p, int by);
    void run(Warp& w, Product& product);
    std::vector<WatchedRegister> registers_;
    std::deque<Product> queue_;
    uint32_t next_number_ = 1, open_group_ = 0;
    bool fenced_ = false;
};

void wgmma_fence(Warp&, const Op&);
void wgmma_commit(Warp&, const Op&);
void wgmma_wait(Warp&, const Op&);  // Op::immediate: groups that may remain
void wgmma(Warp&, const Op&);

}  // namespace virtual_gpu
