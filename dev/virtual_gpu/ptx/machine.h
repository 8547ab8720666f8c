// The machine: decoded instructions, and the warps that run them, 32 lanes in lockstep.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/ptx/kernel.h"

namespace virtual_gpu {

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = ~0u;
constexpr uint64_t kSharedWindow = uint64_t{0x51} << 56;     // generic addresses of shared memory
constexpr uint64_t kParameterWindow = uint64_t{0x52} << 56;  // of a kernel's parameters
constexpr uint32_t kSharedBase = 1024;                       // a block's first KiB is reserved for the system

inline bool has(uint32_t mask, int lane) { return mask >> lane & 1; }
inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }
inline int count_lanes(uint32_t mask) { return __builtin_popcount(mask); }

struct Warp;
struct Op;
struct Block;
using Execute = void (*)(Warp&, const Op&);

enum class Space : uint8_t { none, global, shared, parameter, generic };

// The pipe of a multiprocessor that an instruction uses.
enum class Kind : uint8_t {
    move,
    integer,
    float32,
    float64,
    convert,
    special,
    tensor,
    shared,
    global,
    parameter,
    barrier,
    control
};
constexpr int kKinds = 12;
extern const char* const kKindNames[kKinds];

// One instruction. Operands are places: the two top bits choose the bank, the others count its 4-byte words. A 32-bit
// value occupies 32 words, one per lane; a 64-bit value occupies 64. Predicates are masks of 32 lanes, counted one by
// one.
struct Op {
    Execute execute = nullptr;
    std::array<uint32_t, 14> at{};
    int64_t immediate = 0;  // address offset and others
    int32_t target = -1;    // of a branch
    int32_t meet = -1;      // where a branch's lanes meet; -1 if at their end
    int32_t list = -1;      // in Code::lists, if 14 operands are too few
    int16_t predicate = -1;
    bool negate = false;
    uint8_t size = 0, count = 1;               // bytes of one element, number of elements
    uint8_t mode = 0;                          // of an instruction with several modes
    bool wide = false;                         // 64-bit registers
    bool has_base = false, wide_base = false;  // the memory operand has a register in at[kBase]; it is 64 bits wide
    Space space = Space::none;
    Kind kind = Kind::control;
    uint32_t line = 0;  // in the module's text
};
constexpr int kBase = 13;  // the place of a memory operand's register

enum Bank : uint32_t { kRegisterBank = 0, kConstantBank = 1u << 30, kSpecialBank = 2u << 30 };
enum Special {
    kTidX,
    kTidY,
    kTidZ,
    kLane,
    kCtaX,
    kCtaY,
    kCtaZ,
    kNtidX,
    kNtidY,
    kNtidZ,
    kNctaX,
    kNctaY,
    kNctaZ,
    kWarpId,
    kClock,
    kSpecials
};

// A product of a warpgroup, wgmma.mma_async, which has more operands than an Op.
struct WgmmaShape {
    uint16_t columns = 0;  // N; M is 64, K is 32 bytes
    Element a{}, b{};
    bool a_in_registers = false, negative_a = false, negative_b = false, transposed_a = false, transposed_b = false;
    uint32_t scale_d = 1, b_place = 0;  // a predicate; the descriptor
    std::vector<uint32_t> a_places;     // four registers, or the descriptor
    std::vector<uint32_t> results;      // N / 2 registers
};

struct Code {
    std::vector<Op> ops;
    std::vector<uint32_t> constants;  // 32 or 64 words each
    std::vector<std::vector<uint32_t>> lists;
    uint32_t register_words = 0, predicates = 2;
    uint32_t shared_end = 0;           // end of the static variables, as a shared address
    uint32_t dynamic_base = 0;         // beginning of the dynamic part
    std::vector<std::string> opcodes;  // for each op
    bool is_async = false;             // uses mbarriers, bulk copies or warpgroup products (async.h)
    // For each op of a kernel with warpgroup products: the registers that it names, as places / 32.
    struct Touch {
        std::vector<uint32_t> registers;
        bool moves = false;     // it only copies a register
        bool is_wgmma = false;  // it checks the registers itself
    };
    std::vector<Touch> touches;
    std::vector<WgmmaShape> wgmma;  // indexed by Op::list
};

// Throws Fault, with the line, for unknown instructions.
std::unique_ptr<Code> decode(const Kernel& kernel);

// The counts that one host thread collected for a kernel, op by op.
struct OpCounts {
    uint64_t runs = 0, lanes = 0;        // runs by warps; active lanes
    uint64_t bytes = 0;                  // in global memory
    uint64_t requests = 0, sectors = 0;  // in global memory; sectors of 32 bytes
    uint64_t passes = 0, conflicts = 0;  // in shared memory: passes of 128 bytes; those beyond the necessary ones
};

struct Warp {
    uint32_t mask = 0;               // lanes of the running instruction
    uint32_t active = 0, alive = 0;  // lanes on the running path; lanes that have not ended
    int pc = 0;
    uint32_t* bank[3] = {};
    uint32_t* predicates = nullptr;
    Block* block = nullptr;
    const Code* code = nullptr;
    bool waiting = false, done = false, yield = false;
    int barrier = -1, index = 0;
    struct Path {  // an entry of the divergence stack: the place of these lanes, and where they meet those below
        int pc, meet;
        uint32_t mask;
        bool waits = false;  // for lanes of other paths, at an instruction that needs them
    };
    std::vector<Path> paths;
    struct Copy {  // a cp.async until its wait
        int lane;
        uint32_t group, to;
        const char* from;  // nullptr for zeros
        uint32_t bytes, size;
    };
    std::vector<Copy> copies;
    std::array<uint32_t, kLanes> open_group{};
    class WarpProducts* products = nullptr;      // of wgmma; nullptr if the kernel has none
    uint64_t waits_failed = 0, seen_events = 0;  // how often it asked mbarriers in vain since that event of its block
    uint32_t waits_for = 0;                      // the mbarrier it asked last, and where
    const Op* waits_at = nullptr;
    std::vector<uint32_t> registers, specials, predicate_storage;

    template <class T>
    T* at(uint32_t place) {
        return reinterpret_cast<T*>(bank[place >> 30] + (place & 0x3fffffffu));
    }
    void set_predicate(uint32_t place, uint32_t lanes) {
        predicates[place] = (predicates[place] & ~mask) | (lanes & mask);
    }
    // Sets a 32-bit register in the active lanes.
    void set_words(uint32_t place, const uint32_t* values) {
        uint32_t* const d = at<uint32_t>(place);
        for (int i = 0; i < kLanes; i++) d[i] = has(mask, i) ? values[i] : d[i];
    }
    std::string where(const Op& op, int lane) const;
    [[noreturn, gnu::format(printf, 4, 5)]] void fail(const Op& op, int lane, const char* text, ...) const;
    void need_all_lanes(const Op& op, const char* what) const;  // fails unless all lanes take part
    void resume();                                              // continues with the path at the top
    void pop_path();
    // For an instruction that other lanes should execute too: lets the paths continue that diverged from this one and
    // meet it no sooner, until they end or arrive here. Then the instruction runs again. Returns false if there are
    // none.
    bool run_others_first();
};

// A running block, on one host thread.
struct Block {
    const Launch* launch = nullptr;
    const Code* code = nullptr;
    uint32_t id[3] = {};
    std::vector<unsigned char> shared;
    std::vector<uint8_t> shared_written;  // kWritten flags, byte by byte
    uint32_t shared_end = 0;              // as a shared address
    std::vector<Warp> warps;
    struct Barrier {
        uint32_t arrived = 0, expected = 0;
        uint32_t warps = 0;    // a bit for each that has arrived
        bool counted = false;  // true if `expected` was given
    };
    std::array<Barrier, 16> barriers{};
    std::vector<Range> ranges;               // for each op, the allocation that it last accessed
    uint64_t generation = ~uint64_t{0};      // of memory, when `ranges` were found
    class Races* races = nullptr;            // nullptr if race detection is off
    std::vector<OpCounts> counts;            // for each op; empty if counting is off
    struct LastStore* last_store = nullptr;  // nullptr if not needed
    uint64_t random = 0;                     // state of the generator; 0 if nothing is random
    std::shared_ptr<class Async> async;      // nullptr if the kernel uses none
    uint64_t events = 0;                     // counts events that another warp may have waited for

    // The memory at a shared address; also for 0, from which others count.
    char* shared_bytes(int64_t address) { return reinterpret_cast<char*>(shared.data()) + (address - kSharedBase); }
    uint8_t* shared_shadow(int64_t address) { return shared_written.data() + (address - kSharedBase); }
    OpCounts* counts_of(const Op& op);
    uint64_t next_random();
};

// Called after a warp has ended or reached a barrier: releases the warps of every barrier at which all have arrived.
void release_barrier(Block& block, int barrier);

}  // namespace virtual_gpu
