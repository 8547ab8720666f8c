// Products of warpgroups, wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

constexpr int kWarpgroup = 4;  // warps
// Notes that a warp executes an instruction of its warpgroup, all of whose warps must: the n-th of each is the same,
// with the same operands. Fails the warp where it is not.
void log_of_warpgroup(Warp& w, const Op& op, uint64_t a, uint64_t b);

// What the warps of a warpgroup executed, one after the other: all the same.
struct WarpgroupLog {
    struct Entry {
        const Op* op;
        uint64_t a, b;  // descriptors
        int warp;
    };
    std::vector<Entry> entries;
    uint32_t count[kWarpgroup] = {};
};

// A register that a product has not let go yet, or that was used since the last wgmma.fence.
struct WatchedRegister {
    uint32_t product = 0;  // whose result it will hold or whose input it holds; 0: none
    uint16_t index = 0;    // which one of its results
    bool is_input = false;
    uint32_t line = 0;     // of that product
    uint32_t touched = 0;  // the line that used it last since wgmma.fence, 0: none
    uint16_t columns = 0;  // N of the products that accumulated to it since
};

struct Product {
    uint32_t number = 0, group = 0;
    const Op* op = nullptr;
    uint64_t a = 0, b = 0;
    bool accumulates = true;
    std::vector<uint32_t> a_registers;  // 4 x 32 lanes
    struct Input {                      // of the sums: known values, or the result of a product before
        uint32_t product = 0;
        uint16_t index = 0;
    };
    std::vector<Input> inputs;
    std::vector<float> sums;  // N / 2 registers x 32 lanes
};

class WarpProducts {
public:
    void start(const Warp& w);
    // Before an instruction that is no product: fails the warp where it uses what is not its to use.
    void check(Warp& w, const Op& op);
    void add(Warp& w, const Op& op);
    void fence();
    void commit() { open_group_++; }
    void wait(Warp& w, uint32_t left);
    void finish(const Warp& w) const;
    // The product that reads some of `bytes` at a shared address later on; null: none.
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
void wgmma_wait(Warp&, const Op&);  // Op::immediate: groups that may be left
void wgmma(Warp&, const Op&);

}  // namespace virtual_gpu
