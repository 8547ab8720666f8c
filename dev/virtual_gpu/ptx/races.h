// Race detection (VIRTUAL_GPU_RACES=1): two unordered accesses to the same bytes, at least one of them a write.
//
// Barriers and mbarriers order threads of a block, and bar.warp.sync orders lanes of a warp. Lockstep execution,
// shuffles and votes do not, because since Volta they promise nothing about memory (CUDA C++ Programming Guide,
// "Independent Thread Scheduling"). Blocks of a grid are never ordered: kernels that hand data from block to block with
// fences and atomics are not supported. A lane that arrives at an mbarrier passes on its own accesses, and those of its
// warp's other lanes only if it has met them. Two atomic accesses never race. Each word of 4 bytes remembers its last
// write and two reads, the first since that write and the last (after Flanagan and Freund, "FastTrack", 2009). So the
// result does not depend on the order of blocks and warps, but one of three readers may be forgotten.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "dev/virtual_gpu/ptx/address.h"
#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

enum class Access : uint8_t { read, write, atomic };

class Races {
public:
    // Null if launches shall detect none: without VIRTUAL_GPU_RACES=1, and after virtual_gpu_detects_races(false).
    static Races* wanted();

    void start_launch();
    void start_block(const Block& block);

    // Fails the warp if an active lane's access of `bytes` bytes races with an earlier one.
    void note(Warp& w, const Op& op, const Addresses& at, uint32_t bytes, Access access);
    // Records one lane's write of shared memory, known to be in bounds: the end of an asynchronous copy.
    void note_shared_write(Warp& w, const Op& op, int lane, uint32_t address, uint32_t bytes);
    // Begins to load what is known of these bytes of shared memory, because an access will follow. It is 16 times as
    // much and seldom in a cache.
    void expect(uint32_t address, uint32_t bytes) const {
        for (uint32_t b = 0; b < bytes; b += 4) __builtin_prefetch(&shared_[(address - kSharedBase + b) / 4], 1);
    }

    void arrive(const Warp& w, size_t barrier, bool waits);
    void release(size_t barrier);
    void warp_barrier(const Warp& w, uint32_t members);
    // For mbarriers: knowledge that lanes release for those who will wait, and that waiting lanes acquire. Of another
    // warp's knowledge, a lane passes on and receives everything that its warp has.
    struct Knowledge {
        std::vector<uint32_t> warps;                      // accesses of all lanes up to this clock of each warp,
        std::vector<std::array<uint32_t, kLanes>> lanes;  // and those of a lane up to its own clock; empty means none
    };
    void release_to(const Warp& w, uint32_t lanes, Knowledge& to);
    void acquire_from(const Warp& w, uint32_t lanes, const Knowledge& from);
    static void join(Knowledge& to, const Knowledge& from);
    // A moment of a lane, and a test whether another lane knows that it has passed.
    struct Moment {
        uint32_t warp_clock = 0, lane_clock = 0;
        int warp = 0, lane = 0;
    };
    Moment moment(const Warp& w, int lane);
    bool knows(const Warp& w, int lane, const Moment& moment) const;

private:
    // The thread that accessed a word, and the time by its own clocks. Blocks are counted over all launches. Small,
    // because each word of memory has three.
    struct Entry {
        uint32_t block = 0, line = 0, lane_clock = 0, warp_clock = 0;
        uint16_t warp = 0;
        uint8_t lane = 0;
        uint8_t bytes : 4 = 0;  // a mask
        bool is_atomic : 1 = false;
    };
    struct alignas(64) Word {  // a cache line
        Entry write, first_read, last_read;
    };
    struct Clocks {
        bool used = false;       // true if accesses were made at the warp's present clock
        uint32_t met = 0;        // all lanes of the warp know all accesses up to this clock,
        uint32_t since_met = 0;  // and these lanes have made accesses since
        Knowledge known;         // about the warps of the block
        std::array<std::array<uint32_t, kLanes>, kLanes> lanes{};  // knowledge of each lane about each other lane
    };

    // Always inlined, so that entries stay in registers.
    [[gnu::always_inline]] Entry entry(const Warp& w, const Op& op, int lane, Access access);
    [[gnu::always_inline]] void note_word(Warp& w, const Op& op, Word& word, const Entry& now, Access access,
                                          bool is_shared) const;
    [[gnu::always_inline]] bool is_ordered(const Entry& before, const Entry& now, uint32_t oldest) const;
    void fail(Warp& w, const Op& op, const Entry& before, const Entry& now, bool is_shared) const;
    bool knows_warp(const Clocks& clocks, int warp, int lane, uint32_t warp_clock, uint32_t lane_clock) const;
    void order_lanes(Clocks& clocks, uint32_t members);

    uint32_t launch_ = 0, block_ = 0, first_block_ = 1;  // first_block_ is the launch's
    std::vector<Clocks> clocks_;                         // by warp
    struct Meeting {
        Knowledge known;
        std::vector<size_t> waiting;
    };
    std::array<Meeting, 16> meetings_;
    std::vector<Word> shared_;
    const Block* running_ = nullptr;
    Word* global_ = nullptr;  // by word of device memory
};

}  // namespace virtual_gpu

// For a test that launches again what has been checked: whether launches that are played from now on detect races.
extern "C" void virtual_gpu_detects_races(bool on);
