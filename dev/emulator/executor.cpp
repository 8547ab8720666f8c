// The scheduler of GPU threads: switching between fibers, barriers, shared memory, and running blocks. It takes the
// place of llmc/device/host/grid.cpp.
// build: per device, optimized
#include "dev/emulator/executor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/device/gpu_rules.h"
#include "llmc/device/host/runtime.h"

namespace llmc::host {

void worker_entry();

constexpr size_t kPage = 4096;
constexpr size_t kArenaBytes = 320 << 10;  // 227 KB of shared memory, canaries and alignment
constexpr size_t kCanaryBytes = 64;
constexpr char kCanary = static_cast<char>(0xA5);

[[noreturn]] static void die(const char* what) {
    std::perror(what);
    std::abort();
}

EmulatorSettings::EmulatorSettings() : stack_bytes((LLMC_ASAN ? 256 : 64) << 10) {
    order = static_cast<Order>(choice_from_environment("LLMC_ORDER", {"ascending", "descending", "random"}));
    if (std::getenv("LLMC_STACK_KB"))
        stack_bytes = static_cast<size_t>(number_from_environment("LLMC_STACK_KB", 32, 1 << 20)) << 10;
}

EmulatorSettings& emulator_settings() {
    static EmulatorSettings instance;
    return instance;
}

Executor::Executor() : lanes_(new Lane[kMaxThreads]), stack_bytes_(emulator_settings().stack_bytes) {
    void* p = mmap(nullptr, kArenaBytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("shared memory of the host device");
    arena_ = static_cast<char*>(p);
    if (mprotect(arena_ + kArenaBytes, kPage, PROT_NONE)) die("guard page of shared memory");
    asan_poison(arena_, kArenaBytes);
}

// ---- switching ------------------------------------------------------------------------------------------------------

__attribute__((always_inline)) inline void Executor::jump(Context& save, const Context& target) {
    const Context to = target;
    save.stack = my_stack_;
    my_stack_ = to.stack;
#if LLMC_TSAN
    save.tsan = __tsan_get_current_fiber();
    save.quiet_depth = quiet_depth;
    __tsan_switch_to_fiber(to.tsan, 1);
#endif
#if LLMC_ASAN
    void* fake_stack;
    __sanitizer_start_switch_fiber(&fake_stack, to.stack < 0 ? main_bottom_ : stacks_[to.stack],
                                   to.stack < 0 ? main_size_ : stack_bytes_);
    fiber_switch(&save.sp, to.sp);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
    fiber_switch(&save.sp, to.sp);
#endif
#if LLMC_TSAN
    quiet_depth = std::exchange(save.quiet_depth, 0);
#endif
}

// Chooses a set bit of `mask` by the current thread order.
inline int Executor::choose(uint32_t mask) {
    if (order_ == Order::ascending) return __builtin_ctz(mask);
    if (order_ == Order::descending) return 31 - __builtin_clz(mask);
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    for (int k = static_cast<int>(random_ % static_cast<uint32_t>(__builtin_popcount(mask))); k; k--) mask &= mask - 1;
    return __builtin_ctz(mask);
}

inline void Executor::resume(Context& save, int warp_number) {
    Warp& warp = warps_[warp_number];
    const int l = choose(warp.ready);
    warp.ready &= ~(1u << l);
    if (!warp.ready) ready_warps_ &= ~(1u << warp_number);
    Lane& lane = lanes_[warp_number * 32 + l];
    lane_ = &lane;
    warp_index_ = warp_number;
    threadIdx = lane.thread;
    if (&lane.context != &save) jump(save, lane.context);
}

// Leaves the running lane for a ready lane of its warp, else for a thread not yet started, else for any ready lane.
void Executor::suspend(bool whole_block) {
    Quiet quiet;
    Context& me = lane_->context;
    if (!whole_block && warps_[warp_index_].ready)
        resume(me, warp_index_);
    else if (next_ < thread_count_)
        start_worker(me);
    else if (ready_warps_)
        resume(me, choose(ready_warps_));
    else
        deadlock();
}

inline int Executor::thread_at(int position) const {
    if (order_ == Order::ascending) return position;
    if (order_ == Order::descending) return thread_count_ - 1 - position;
    return permutation_[position];
}

void Executor::start_worker(Context& save) {
#if LLMC_TSAN
    // One stack per lane and block parity: to the race detector, two GPU threads on one stack address would race.
    const int id = thread_at(next_) * 2 + static_cast<int>(block_number_ & 1);
    while (stack_count_ <= id) new_fiber();
#else
    if (!idle_count_) new_fiber();
    const int id = idle_list_[--idle_count_];
#endif
    jump(save, idle_[id]);
}

// The loop of every worker fiber: runs threads until one has to wait, then hands over to another fiber.
void Executor::worker() {
    for (;;) {
        do {
            const int i = thread_at(next_++);
            lane_ = &lanes_[i];
            warp_index_ = i >> 5;
            threadIdx = lane_->thread;
#if LLMC_TSAN
            void* worker_context = __tsan_get_current_fiber();
            void*& lane_context = lane_->tsan[block_number_ & 1];
            if (!lane_context) lane_context = __tsan_create_fiber(0);
            const int worker_depth = std::exchange(quiet_depth, 0);
            __tsan_switch_to_fiber(lane_context, 1);
            __tsan_acquire(&next_);
            call_(argument_);
            __tsan_release(&done_count_);
            __tsan_switch_to_fiber(worker_context, 1);
            quiet_depth = worker_depth;
#else
            call_(argument_);
#endif
            finish_thread();
        } while (!LLMC_TSAN && next_ < thread_count_ && !warps_[warp_index_].ready);
        Context& me = idle_[my_stack_];
        idle_list_[idle_count_++] = my_stack_;
        if (warps_[warp_index_].ready)
            resume(me, warp_index_);
        else if (LLMC_TSAN && next_ < thread_count_)
            start_worker(me);
        else if (done_count_ == thread_count_)
            jump(me, main_context_);
        else if (ready_warps_)
            resume(me, choose(ready_warps_));
        else
            deadlock();
    }
}

inline void Executor::finish_thread() {
    if (__builtin_expect(copies_used_, 0)) {
        lane_->copies.clear();
        lane_->open_group = 0;
    }
    Warp& warp = warps_[warp_index_];
    warp.done |= 1u << lane_index();
    done_count_++;
    if (__builtin_expect(warp.waiting | static_cast<uint32_t>(barrier_.count), 0)) check_exit(warp);
}

void worker_entry() {
    Executor& e = *current_executor;
#if LLMC_ASAN
    const void* bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!e.main_bottom_) {
        e.main_bottom_ = bottom;
        e.main_size_ = size;
    }
#endif
#if LLMC_TSAN
    if (!std::exchange(e.fiber_hidden_[e.my_stack_], true)) new Quiet;  // the race detector ignores workers for good
    quiet_depth = 1;
#endif
    e.worker();
}

void Executor::new_fiber() {
    // The page below a stack is closed: an overflow faults instead of corrupting the neighbouring stack.
    void* p =
        mmap(nullptr, stack_bytes_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, kPage, PROT_NONE)) die("stack of a GPU thread");
    stacks_[stack_count_] = static_cast<char*>(p) + kPage;
    idle_[stack_count_] = fresh_context(stack_count_);
    idle_list_[idle_count_++] = stack_count_++;
}

Context Executor::fresh_context(int stack) {
    // Stack tops are staggered so that the hot lines of 32 lanes do not collide in the same cache sets.
    const size_t stagger = static_cast<size_t>(stack & 31) * 128;
    Context context;
    context.stack = stack;
    context.sp = fiber_make(stacks_[stack] + stack_bytes_ - stagger, worker_entry);
#if LLMC_TSAN
    if (!fiber_tsan_[stack]) fiber_tsan_[stack] = __tsan_create_fiber(0);
    context.tsan = fiber_tsan_[stack];
#endif
    return context;
}

// Cleans up after an abandoned GPU thread, which may have stopped inside the scheduler, where the race detector ignores
// accesses. Ends that, and orders everything the thread did before the end of the launch.
void Executor::abandon([[maybe_unused]] Lane& lane) {
#if LLMC_TSAN
    void* const context = lane.context.tsan;
    const int depth = std::exchange(lane.context.quiet_depth, 0);
    const bool is_worker = lane.context.stack >= 0 && context == fiber_tsan_[lane.context.stack];
    if (is_worker) return;  // the worker stands between two threads and stays ignored
    for (void*& own : lane.tsan)
        if (own == context) own = nullptr;
    void* const here = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(context, 1);
    for (int i = 0; i < depth; i++) end_ignoring();
    __tsan_release(&done_count_);
    __tsan_switch_to_fiber(here, 1);
    __tsan_destroy_fiber(context);
#endif
}

// After an error: drops all suspended fibers and rebuilds the pool.
void Executor::rebuild_fibers() {
    barrier_ = {};
    idle_count_ = 0;
    for (int i = 0; i < stack_count_; i++) {
        asan_unpoison(stacks_[i], stack_bytes_);
        idle_[i] = fresh_context(i);
        idle_list_[idle_count_++] = i;
    }
    for (int i = 0; i < kMaxThreads; i++) {
        lanes_[i].copies.clear();
        lanes_[i].open_group = 0;
        if (lanes_[i].context.quiet_depth) abandon(lanes_[i]);
    }
    if (failed_) {
        failed_->context = failed_context_;
        abandon(*failed_);
        failed_ = nullptr;
    }
}

// ---- errors ---------------------------------------------------------------------------------------------------------

void Executor::fail(const char* format, ...) {
    [[maybe_unused]] Quiet quiet;
    char* at = error_;
    char* const end = error_ + sizeof error_;
    va_list args;
    va_start(args, format);
    at += std::min(static_cast<int>(sizeof error_) / 2 - 1, std::vsnprintf(at, sizeof error_ / 2, format, args));
    va_end(args);
    if (lane_)
        at += std::snprintf(at, static_cast<size_t>(end - at), " [thread (%u,%u,%u) of block (%u,%u,%u),",
                            lane_->thread.x, lane_->thread.y, lane_->thread.z, blockIdx.x, blockIdx.y, blockIdx.z);
    if (at < end)
        std::snprintf(at, static_cast<size_t>(end - at), " kernel %s launched at %s:%d]", site_.kernel, site_.file,
                      site_.line);
    failed_ = lane_;
    jump(failed_context_, main_context_);
    __builtin_unreachable();
}

void Executor::check_exit(Warp& warp) {
    const Barrier& b = barrier_;
    if (b.count)
        fail("barrier divergence: thread exited while %d threads wait at __syncthreads %s:%d", b.count, b.file, b.line);
    for (uint32_t m = warp.waiting; m; m &= m - 1) {
        const Lane& other = lanes_[warp_index_ * 32 + __builtin_ctz(m)];
        if (other.mask >> lane_index() & 1)
            fail("lane exited while lane %u waits for it in %s at %s:%d (mask %08x)", other.index & 31, other.what,
                 other.file, other.line, other.mask);
    }
}

void Executor::bad_mask(Warp& warp, uint32_t mask, const char* what, const char* file, int line) {
    const char* problem = mask & ~warp.exist ? "names lanes beyond the block"
                          : mask & warp.done ? "names exited lanes"
                                             : "lacks the calling lane";
    fail("mask %s in %s at %s:%d (mask %08x)", problem, what, file, line, mask);
}

void Executor::diverged(const Lane& other, const char* what, const char* file, int line) {
    fail("warp divergence: this lane is in %s at %s:%d, lane %u in %s at %s:%d (mask %08x)", what, file, line,
         other.index & 31, other.what, other.file, other.line, other.mask);
}

void Executor::deadlock() {
    char text[400] = "";
    char* at = text;
    char* const end = text + sizeof text;
    const Barrier& b = barrier_;
    if (b.count)
        at += std::snprintf(at, static_cast<size_t>(end - at), " %d wait at __syncthreads %s:%d;", b.count, b.file,
                            b.line);
    int shown = 0;
    for (int i = 0; i < thread_count_ && shown < 3 && at < end; i++) {
        const Warp& warp = warps_[i >> 5];
        if (!(warp.waiting >> (i & 31) & 1)) continue;
        const Lane& l = lanes_[i];
        at += std::snprintf(at, static_cast<size_t>(end - at), " thread %d waits in %s at %s:%d (mask %08x);", i,
                            l.what, l.file, l.line, l.mask);
        shown++;
    }
    fail("deadlock: %d of %d threads exited;%s", done_count_, thread_count_, text);
}

// ---- barriers and shuffles ------------------------------------------------------------------------------------------

void Executor::barrier(const char* file, int line) {
    Quiet quiet;
    Barrier& b = barrier_;
    if (done_count_) fail("barrier divergence: %d threads exited before __syncthreads %s:%d", done_count_, file, line);
    if (b.count == 0) {
        b.file = file;
        b.line = line;
    } else if (b.line != line || (b.file != file && std::strcmp(b.file, file))) {
        fail("barrier divergence: this thread is at %s:%d, %d others wait at %s:%d", file, line, b.count, b.file,
             b.line);
    }
    b.waiting[warp_index_] |= 1u << lane_index();
    char* sync = &b.sync[b.generation & 1];
    sync_release(sync);
    if (++b.count == thread_count_) {
        for (int w = 0; w < warp_count_; w++) {
            if (!b.waiting[w]) continue;
            warps_[w].ready |= b.waiting[w];
            ready_warps_ |= 1u << w;
            b.waiting[w] = 0;
        }
        b.count = 0;
        b.generation++;
        suspend(true);
    } else {
        suspend();
    }
    sync_acquire(sync);
}

void Executor::sync_warp(uint32_t mask, const char* file, int line) {
    Warp& warp = warps_[warp_index_];
    const int group = mask ? __builtin_ctz(mask) : 0;
    char* sync = &warp.sync[group][warp.generation[group] & 1];
    sync_release(sync);
    collective(mask, nullptr, "__syncwarp", file, line, [&](void**) { warp.generation[group]++; });
    sync_acquire(sync);
}

// ---- shared memory --------------------------------------------------------------------------------------------------

void Executor::open_shared(char* p, size_t bytes, [[maybe_unused]] size_t canary) {
    shared_used_ = true;
#if LLMC_ASAN
    asan_unpoison(p, bytes);
#else
    std::memset(p - kCanaryBytes, kCanary, kCanaryBytes);
    std::memset(p + bytes, kCanary, canary);
    red_zones_.push_back({p, bytes, canary});
#endif
    if (settings().poison) std::memset(p, 0xFF, bytes);  // NaN as float, bf16 and FP8
}

void* Executor::static_shared(SharedSite& site, size_t bytes) {
    Quiet quiet;
    if (site.block == block_number_) return site.address;
    const size_t at = (static_top_ + 127) & ~size_t{127};
    static_bytes_ += (bytes + 15) & ~size_t{15};
    check_shared_limits();
    open_shared(arena_ + at, bytes, kCanaryBytes);
    static_top_ = at + bytes + kCanaryBytes;
    site.block = block_number_;
    return site.address = arena_ + at;
}

// Checks the block's limits again after another static array was added. A GPU knows the size of all arrays from the
// binary and refuses the launch.
void Executor::check_shared_limits() {
    if (static_bytes_ > 48 * 1024)
        fail("shared memory exceeds the limit: %zu bytes of static arrays, at most 48 KB", static_bytes_);
    const size_t limit = settings().shared_limit;
    if (static_bytes_ + dynamic_bytes_ <= limit) return;
    char problem[256] = "";  // fail() does not unwind, so no std::string may be alive then
    shared_memory_excess(static_bytes_, dynamic_bytes_, limit).copy(problem, sizeof problem - 1);
    fail("%s", problem);
}

void* Executor::dynamic_shared(const char* file, int line) {
    if (!dynamic_bytes_) fail("dynamic shared memory used at %s:%d but the launch gave 0 bytes", file, line);
    return dynamic_;
}

void Executor::shared_begin(size_t bytes) {
    dynamic_bytes_ = bytes;
    static_top_ = kCanaryBytes;
    static_bytes_ = 0;
    red_zones_.clear();
    block_number_++;
    dynamic_ = arena_ + kArenaBytes - ((bytes + kCanaryBytes + 127) & ~size_t{127});
#if LLMC_TSAN  // fresh memory for every block: reused memory would look like a race between blocks
    if (shared_used_ &&
        mmap(arena_, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != arena_)
        die("shared memory of the host device");
#endif
    if (shared_used_) asan_poison(arena_, kArenaBytes);
    shared_used_ = false;
    if (bytes) open_shared(dynamic_, bytes, static_cast<size_t>(arena_ + kArenaBytes - dynamic_) - bytes);
}

void Executor::shared_end() {
    for (const RedZone& zone : red_zones_) {
        const auto check = [&](const char* from, size_t bytes) {
            const char* at = std::find_if(from, from + bytes, [](char c) { return c != kCanary; });
            if (at == from + bytes || *error_) return;
            std::snprintf(
                error_, sizeof error_,
                "shared memory overrun: byte %td of an array of %zu bytes was written [block (%u,%u,%u), kernel %s "
                "launched at %s:%d]",
                at - zone.array, zone.bytes, blockIdx.x, blockIdx.y, blockIdx.z, site_.kernel, site_.file, site_.line);
        };
        check(zone.array - kCanaryBytes, kCanaryBytes);
        check(zone.array + zone.bytes, zone.canary);
    }
}

// ---- blocks and grids -----------------------------------------------------------------------------------------------

void Executor::begin_grid(dim3 block, void (*call)(void*), void* argument, const LaunchSite& site) {
    call_ = call;
    argument_ = argument;
    site_ = site;
    *error_ = 0;
    order_ = emulator_settings().order;
    thread_count_ = static_cast<int>(block.x * block.y * block.z);
    warp_count_ = (thread_count_ + 31) / 32;
    blockDim = {block.x, block.y, block.z};
    if (block_shape_.x != block.x || block_shape_.y != block.y || block_shape_.z != block.z) {
        block_shape_ = block;
        for (unsigned i = 0; i < static_cast<unsigned>(thread_count_); i++) {
            lanes_[i].index = i;
            lanes_[i].thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        }
    }
    if (order_ == Order::random) shuffle_threads(settings().seed);
}

// For random order: shuffles the warps, then the lanes of each warp.
void Executor::shuffle_threads(uint32_t seed) {
    random_ = seed * 2654435761u | 1;
    auto below = [&](int n) {
        random_ = random_ * 1664525u + 1013904223u;
        return static_cast<int>((random_ >> 8) % static_cast<uint32_t>(n));
    };
    int warps[kMaxWarps];
    for (int w = 0; w < warp_count_; w++) warps[w] = w;
    for (int w = warp_count_ - 1; w > 0; w--) std::swap(warps[w], warps[below(w + 1)]);
    int n = 0;
    for (int k = 0; k < warp_count_; k++) {
        const int begin = n;
        for (int t = warps[k] * 32; t < warps[k] * 32 + 32 && t < thread_count_; t++)
            permutation_[n++] = static_cast<uint16_t>(t);
        for (int i = n - 1; i > begin; i--) std::swap(permutation_[i], permutation_[begin + below(i - begin + 1)]);
    }
}

void Executor::run_block(size_t dynamic_shared_bytes) {
    next_ = done_count_ = warp_index_ = 0;
    if (LLMC_TSAN) idle_count_ = 0;
    ready_warps_ = 0;
    shared_begin(dynamic_shared_bytes);
    for (int w = 0; w < warp_count_; w++) {
        Warp& warp = warps_[w];
        const int lanes = thread_count_ - w * 32;
        warp.ready = warp.waiting = warp.done = 0;
        warp.exist = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    }
    sync_release(&next_);
    start_worker(main_context_);
    if (shared_used_ && !*error_) shared_end();
    if (*error_) rebuild_fibers();
    lane_ = nullptr;
}

namespace {
// The number of the i-th block to start. Blocks are unordered, so no result may depend on it.
struct BlockOrder {
    unsigned long blocks, stride = 1;
    Order order = emulator_settings().order;
    explicit BlockOrder(unsigned long n) : blocks(n) {
        if (order != Order::random || blocks < 3) return;
        stride = settings().seed * 2654435761ul % blocks | 1;
        while (std::gcd(stride, blocks) != 1) stride += 2;
    }
    unsigned long operator[](unsigned long i) const {
        if (order == Order::ascending) return i;
        if (order == Order::descending) return blocks - 1 - i;
        return static_cast<unsigned long>(static_cast<unsigned __int128>(i + 1) * stride % blocks);
    }
};
}  // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, void (*call)(void*), void* argument, const LaunchSite& site) {
    const long blocks = static_cast<long>(grid.x) * grid.y * grid.z;
    const BlockOrder block_order(static_cast<unsigned long>(blocks));
    std::string failure;
    static char fork_object, join_object;  // order the blocks between launch and end, for ThreadSanitizer
    sync_release(&fork_object);
#pragma omp parallel if (blocks > 1)
    {
        sync_acquire(&fork_object);
        if (!current_executor) current_executor = new Executor;  // lives as long as its OS thread
        Executor& e = *current_executor;
        e.begin_grid(block, call, argument, site);
        gridDim = {grid.x, grid.y, grid.z};
#pragma omp for schedule(dynamic, 1)
        for (long i = 0; i < blocks; i++) {
            if (*e.error()) continue;
            Quiet quiet;
            const unsigned long b = block_order[static_cast<unsigned long>(i)];
            blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                        static_cast<unsigned>(b / grid.x / grid.y)};
            e.run_block(shared_bytes);
        }
#pragma omp critical(llmc_run_grid)
        if (*e.error()) failure = e.error();
        sync_acquire(e.done_object());
        sync_release(&join_object);
    }
    sync_acquire(&join_object);
    if (!failure.empty()) throw Error(ExitCode::failure, failure);
}

void fail_kernel(const char* format, ...) {
    if (!current_executor || !current_executor->in_kernel()) return;
    char text[400];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    current_executor->fail("%s", text);
}

}  // namespace llmc::host
