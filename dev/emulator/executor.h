// Runs the blocks of a kernel on one OS thread. A fiber runs each GPU thread of a block, or several in turn.
//
// Lazy fibers. A worker fiber runs GPU threads one after the other in a plain loop. Only when a thread must wait, at a
// barrier or a warp collective, does the scheduler continue on another fiber, so a kernel that never waits costs no
// switch. A warp runs up to the block's next barrier before another warp runs.
//
// The last arriver does the work. At a warp collective (shuffle, ldmatrix, mma) a lane deposits a pointer to its
// arguments, which lie on its own suspended stack. The last lane of the mask to arrive computes all results and writes
// them into the lanes' frames.
//
// Errors abandon the block. fail() jumps back to run_block() without unwinding, the stacks are rebuilt, and run_grid()
// throws llmc::Error. Kernels therefore must not own heap memory.
//
// ThreadSanitizer sees every GPU thread as a separate context, ordered only by barriers, so it finds a kernel's races.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dev/emulator/settings.h"
#include "llmc/device/host/builtins.h"

namespace llmc::host {

// ---- fibers ---------------------------------------------------------------------------------------------------------

// A symmetric context switch between stacks, the base of the host device's GPU threads.
//
//   fiber_make(top, entry)    creates a fiber on the stack that ends at `top`; entry() must never return
//   fiber_switch(&save, to)   suspends the running context into `save` and continues `to`
//
// A switch saves the callee-saved registers in a few instructions (6 to 9 ns). ucontext would make two system calls
// (150 ns). There is code for x86-64 and AArch64.
using FiberHandle = void*;

inline void** aligned_stack_top(void* top) {
    return reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~static_cast<uintptr_t>(63));
}

#if defined(__x86_64__)

// Pushes the six callee-saved registers, swaps stacks, pops, and leaves by an indirect jump: the CPU would predict a
// `ret` to return to the caller and mispredict every time.
extern "C" __attribute__((naked, noinline)) inline void llmc_fiber_switch(void**, void*) {
    asm volatile(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
        "popq %rcx\n jmpq *%rcx\n");
}
inline FiberHandle fiber_make(void* top, void (*entry)()) {
    void** sp = aligned_stack_top(top);
    *--sp = nullptr;  // return address of entry, which never returns, so backtraces end here
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}

#elif defined(__aarch64__)  // x19 to x30 and d8 to d15

extern "C" void llmc_fiber_switch(void**, void*);
asm(".text\n.weak llmc_fiber_switch\n.p2align 4\nllmc_fiber_switch:\n sub sp, sp, #160\n"
    " stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n"
    " stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n"
    " stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n mov x9, sp\n str x9,[x0]\n mov sp, x1\n"
    " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
    " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n"
    " ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp, sp, #160\n br x30\n");
inline FiberHandle fiber_make(void* top, void (*entry)()) {
    void** sp = aligned_stack_top(top) - 20;
    for (int i = 0; i < 20; i++) sp[i] = nullptr;
    sp[11] = reinterpret_cast<void*>(entry);  // x30
    return sp;
}

#endif

__attribute__((always_inline)) inline void fiber_switch(FiberHandle* save, FiberHandle to) {
    llmc_fiber_switch(save, to);
}

// ---- the executor ---------------------------------------------------------------------------------------------------

constexpr int kMaxThreads = 1024;  // per block
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kMaxFibers = 2 * kMaxThreads + 2;

// A suspended execution context: a fiber, and ThreadSanitizer's name for it.
struct Context {
    FiberHandle sp = nullptr;
    int stack = -1;  // index of its stack; -1 is the OS thread's own
    void* tsan = nullptr;
    int quiet_depth = 0;  // the number of live Quiet objects when it was suspended
};

// An asynchronous copy that was issued and not yet waited for. Its size is a number in memory, although it always is
// 16: the compiler would expand a copy of a size that it knows in place, where ThreadSanitizer does not see it.
struct PendingCopy {
    void* destination;
    const void* source;  // nullptr: the destination becomes zeros
    size_t bytes;
    uint32_t group;
};

// One GPU thread. `what`, `file` and `line` say where it waits.
struct Lane {
    Context context;
    uint3 thread{};
    uint32_t index = 0;
    uint32_t mask = 0;
    const char* what = "";
    const char* file = "";
    int line = 0;
    std::vector<PendingCopy> copies;
    uint32_t open_group = 0;  // the cp.async group being filled
    void* tsan[2] = {};       // contexts by block parity, since neighbouring blocks are unordered
};

// 32 lanes as bit masks, and the exchange area of their collectives.
struct Warp {
    uint32_t ready, waiting, done, exist;
    void* payload[32];
    uint32_t value[32], source[32], result[32];
    // ThreadSanitizer objects of __syncwarp, by the mask's lowest lane, since disjoint parts of a warp are unordered.
    // They alternate, so that a fast thread's next release cannot hide a race.
    uint32_t generation[32];
    char sync[32][2];
};

struct Barrier {
    int count;
    const char* file;
    int line;
    uint32_t waiting[kMaxWarps];
    uint32_t generation;
    char sync[2];
};

class Executor {
public:
    Executor();

    // ---- called by kernels, through the functions of builtins.cpp ----

    [[noreturn]] __attribute__((noinline, format(printf, 2, 3))) void fail(const char* format, ...);
    void barrier(const char* file, int line);  // __syncthreads
    void sync_warp(uint32_t mask, const char* file, int line);
    void* static_shared(SharedSite& site, size_t bytes);
    void* dynamic_shared(const char* file, int line);

    template <class F>
    __attribute__((always_inline)) void collective(uint32_t mask, void* payload, const char* what, const char* file,
                                                   int line, F&& operation) {
        Quiet quiet;
        Warp& warp = warps_[warp_index_];
        warp.payload[lane_index()] = payload;
        if (arrive(mask, what, file, line)) {
            operation(warp.payload);
            complete(mask);
        } else {
            suspend();
        }
    }
    // Returns the 32-bit value of lane `source`.
    __attribute__((always_inline)) uint32_t shuffle(uint32_t mask, uint32_t value, int source, const char* what,
                                                    const char* file, int line) {
        Quiet quiet;
        Warp& warp = warps_[warp_index_];
        const int me = lane_index();
        warp.value[me] = value;
        warp.source[me] = static_cast<uint32_t>(source);
        if (__builtin_expect(!(mask >> source & 1), 0))
            fail("%s reads lane %d, not in mask %08x, at %s:%d", what, source, mask, file, line);
        if (arrive(mask, what, file, line)) {
            for (uint32_t m = mask; m; m &= m - 1) {
                const int i = __builtin_ctz(m);
                warp.result[i] = warp.value[warp.source[i]];
            }
            complete(mask);
        } else {
            suspend();
        }
        return warp.result[me];
    }

    int lane_index() const { return static_cast<int>(lane_->index & 31); }
    Lane& lane() { return *lane_; }
    bool in_kernel() const { return lane_ != nullptr; }

    // ---- called by run_grid ----

    void begin_grid(dim3 block, void (*call)(void*), void* argument, const LaunchSite& site);
    void run_block(size_t dynamic_shared_bytes);
    const char* error() const { return error_; }
    void* done_object() { return &done_count_; }
    void note_copies() { copies_used_ = true; }

private:
    friend void worker_entry();

    void jump(Context& save, const Context& target);
    int choose(uint32_t mask);
    void resume(Context& save, int warp);
    void suspend(bool whole_block = false);
    int thread_at(int position) const;
    void start_worker(Context& save);
    void worker();
    void finish_thread();
    void check_exit(Warp& warp);
    [[noreturn]] void deadlock();
    [[noreturn]] void bad_mask(Warp& warp, uint32_t mask, const char* what, const char* file, int line);
    [[noreturn]] void diverged(const Lane& other, const char* what, const char* file, int line);
    void new_fiber();
    Context fresh_context(int stack);
    void rebuild_fibers();
    void abandon(Lane& lane);
    void shuffle_threads(uint32_t seed);
    void shared_begin(size_t bytes);
    void shared_end();
    void check_shared_limits();
    void open_shared(char* p, size_t bytes, size_t canary);

    // Registers this lane at the collective. True if it is the last of the mask.
    __attribute__((always_inline)) bool arrive(uint32_t mask, const char* what, const char* file, int line) {
        Warp& warp = warps_[warp_index_];
        const uint32_t me = 1u << lane_index();
        const uint32_t others = warp.waiting & mask;
        if (__builtin_expect(!(mask & me) || (mask & (~warp.exist | warp.done)), 0))
            bad_mask(warp, mask, what, file, line);
        if (others) {
            const Lane& other = lanes_[warp_index_ * 32 + __builtin_ctz(others)];
            if (__builtin_expect(other.mask != mask || other.line != line || other.what != what, 0))
                diverged(other, what, file, line);
        }
        lane_->mask = mask;
        lane_->what = what;
        lane_->file = file;
        lane_->line = line;
        warp.waiting |= me;
        return (warp.waiting & mask) == mask;
    }
    // Ends the collective: makes its lanes ready and lets the scheduler choose which one continues.
    __attribute__((always_inline)) void complete(uint32_t mask) {
        Warp& warp = warps_[warp_index_];
        warp.waiting &= ~mask;
        warp.ready |= mask;
        ready_warps_ |= 1u << warp_index_;
        suspend();
    }

    // Scheduling state of the current block.
    Lane* lane_ = nullptr;  // the running GPU thread
    int warp_index_ = 0;
    int thread_count_ = 0, warp_count_ = 0;
    int next_ = 0;  // position of the next thread to start
    int done_count_ = 0;
    uint32_t ready_warps_ = 0;
    uint64_t block_number_ = 0;
    Order order_ = Order::ascending;
    uint32_t random_ = 1;
    Warp warps_[kMaxWarps] = {};
    Barrier barrier_ = {};
    std::unique_ptr<Lane[]> lanes_;
    uint16_t permutation_[kMaxThreads];
    dim3 block_shape_{0, 0, 0};

    // The kernel.
    void (*call_)(void*) = nullptr;
    void* argument_ = nullptr;
    LaunchSite site_;

    // Fibers.
    Context main_context_;
    Lane* failed_ = nullptr;  // the GPU thread that failed; failed_context_ is where it stood
    Context failed_context_;
    int my_stack_ = -1;
    Context idle_[kMaxFibers];
    int idle_list_[kMaxFibers], idle_count_ = 0;
    char* stacks_[kMaxFibers];
    void* fiber_tsan_[kMaxFibers] = {};  // ThreadSanitizer's contexts of the workers
    bool fiber_hidden_[kMaxFibers] = {};
    int stack_count_ = 0;
    size_t stack_bytes_;
    const void* main_bottom_ = nullptr;
    size_t main_size_ = 0;

    // Shared memory: static arrays grow from the arena's start; dynamic memory ends at a guard page.
    char* arena_ = nullptr;
    char* dynamic_ = nullptr;
    size_t static_top_ = 0, static_bytes_ = 0, dynamic_bytes_ = 0;
    bool shared_used_ = false, copies_used_ = false;
    struct RedZone {  // canaries before and after an array
        char* array;
        size_t bytes, canary;
    };
    std::vector<RedZone> red_zones_;

    char error_[1024] = "";
};

inline constinit thread_local Executor* current_executor = nullptr;
inline Executor& executor() { return *current_executor; }

}  // namespace llmc::host

[[noreturn]] inline void __trap() { llmc::host::executor().fail("__trap"); }
