// The device runtime (runtime.h) on the host device.
//
// LLMC_STREAMS=now runs every operation when it is submitted. LLMC_STREAMS=lazy queues it in its stream; a
// synchronisation then runs exactly the work it depends on, as late as possible, so that a missing event wait reads
// stale data. LLMC_STREAMS=random also lets a random stream run ahead now and then: if it should have waited for a
// reader, it overwrites data that is still needed.
#include "llmc/device/host/runtime.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "llmc/base/clock.h"
#include "llmc/device/gpu_rules.h"
#include "llmc/device/host/builtins.h"
#include "llmc/device/memory_ledger.h"
#include "llmc/device/vector.cuh"

namespace llmc::host {

using Stream = CUstream_st;
using Event = CUevent_st;

// One call of record(): a place in a stream's queue. The queue and the event share it, since the event may be recorded
// again or destroyed before the queue reaches the mark.
struct Mark {
    Stream* stream = nullptr;
    bool done = false;
    double time = 0;  // seconds, when the queue reached it
};

struct Operation {
    enum Kind { work, record, wait } kind;
    std::function<void()> run;
    std::vector<Access> accesses;
    LaunchSite site;
    std::shared_ptr<Mark> mark;
};

}  // namespace llmc::host

struct CUstream_st {
    llmc::StreamPriority priority = llmc::StreamPriority::normal;
    std::deque<llmc::host::Operation> queue;
};

struct CUevent_st {
    std::shared_ptr<llmc::host::Mark> last;  // the most recent record
};

namespace llmc {
namespace host {

static std::vector<Stream*> streams;
static std::map<std::string, OperationRecord> records;
static bool recording = false;

// ---- simulated faults (inject_fault) ----

static bool broken = false;

// True for the piece of work at which the fault occurs, and for all later work: it does not run.
static bool is_lost() {
    uint64_t& left = settings().fault;
    if (left > 0 && --left == 0) broken = true;
    return broken;
}

// ---- slow work and flipped bits (settings) ----

// Makes this device slow at some work, like a card that is too hot.
static void delay_if_asked(const Operation& operation) {
    const NumberedWork& delay = settings().delay;
    if (delay.number > 0 && std::strstr(operation.site.kernel, delay.work.c_str()))
        std::this_thread::sleep_for(std::chrono::milliseconds(delay.number));
}

static void flip_if_due(const Operation& operation) {
    NumberedWork& flip = settings().flip;
    if (flip.number == 0 || !std::strstr(operation.site.kernel, flip.work.c_str()) || --flip.number > 0) return;
    for (const Access& a : operation.accesses) {
        if (!a.address || !a.writes || a.bytes == 0) continue;
        static_cast<uint8_t*>(const_cast<void*>(a.address))[a.bytes / 2] ^= 0x40;
        return;
    }
}

constexpr char kFault[] = "the device failed (LLMC_FAULT)";

static void require_device(const char* call) {
    if (broken) throw late_fault(call, kFault);
}

static void run_operation(Operation& operation);

static void run_next(Stream* stream) {
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    run_operation(operation);
}

static void run_until(const Mark& mark) {
    while (!mark.done) {
        if (mark.stream->queue.empty())
            throw Error(ExitCode::failure, "stream deadlock: waiting for an event that is never recorded");
        run_next(mark.stream);
    }
}

static void drain(Stream* stream) {
    while (!stream->queue.empty()) run_next(stream);
}

static void drain_all() {
    for (size_t i = streams.size(); i-- > 0;) drain(streams[i]);
}

static void run_work(Operation& operation) {
    if (is_lost()) return;
    const double start = recording ? monotonic_seconds() : 0;
    {
        DeviceMemory::Open open(operation.accesses);
        operation.run();
        flip_if_due(operation);
    }
    delay_if_asked(operation);
    if (!recording) return;
    OperationRecord& record = records[operation.site.kernel];
    record.count++;
    record.seconds += monotonic_seconds() - start;
    for (const Access& a : operation.accesses) {
        if (a.reads) record.bytes_read += a.bytes;
        if (a.writes) record.bytes_written += a.bytes;
    }
}

static void run_operation(Operation& operation) {
    switch (operation.kind) {
        case Operation::work:
            run_work(operation);
            break;
        case Operation::record:
            operation.mark->done = true;
            operation.mark->time = monotonic_seconds();
            break;
        case Operation::wait:
            run_until(*operation.mark);
            break;
    }
}

// With one submission in four, a random stream runs all its work, so it overtakes streams that it should wait for.
static void run_some_stream() {
    static std::minstd_rand engine(settings().seed);
    const unsigned long draw = engine() / 7;  // the lowest bits of this generator are poor
    if (draw % 4 == 0) drain(streams[draw / 4 % streams.size()]);
}

static void push(Stream* stream, Operation operation) {
    if (!stream) {
        drain_all();
        run_operation(operation);
    } else if (settings().lazy_streams) {
        stream->queue.push_back(std::move(operation));
        if (settings().random_streams) run_some_stream();
    } else {
        run_operation(operation);
    }
}

void inject_fault(uint64_t work) {
    settings().fault = work;
    broken = false;
}

void submit(stream_t stream, std::initializer_list<Access> accesses, const LaunchSite& site,
            std::function<void()> work) {
    if (broken) throw late_fault(std::string(site.line ? "launch of " : "") + site.kernel, kFault);
    Operation operation{Operation::work, std::move(work), accesses, site, nullptr};
    for (const Access& a : accesses)
        if (a.address) DeviceMemory::instance().check_range(a.address, a.bytes, site.kernel);
    push(stream, std::move(operation));
    after_work(stream, site);
}

void check_pointer(const void* p, std::initializer_list<Access> accesses, const LaunchSite& site) {
    if (!p) return;
    const char* c = static_cast<const char*>(p);
    for (const Access& a : accesses) {
        const char* begin = static_cast<const char*>(a.address);
        if (c >= begin && (c < begin + a.bytes || (!a.bytes && c == begin))) return;
    }
    const char* problem = is_device_pointer(p) ? "pointer argument %p is in no tensor that the launch declares"
                                               : "host pointer %p passed to a kernel";
    char text[160];
    std::snprintf(text, sizeof text, problem, p);
    throw Error(ExitCode::failure, "{} [kernel {} launched at {}:{}]", text, site.kernel, site.file, site.line);
}

void check_launch(dim3 grid, dim3 block, size_t shared_bytes, const LaunchSite& site) {
    const auto bad = [&](const std::string& what) {
        throw Error(ExitCode::failure, "invalid launch configuration: {} [kernel {} launched at {}:{}]", what,
                    site.kernel, site.file, site.line);
    };
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) bad("a dimension is zero");
    const size_t threads = static_cast<size_t>(block.x) * block.y * block.z;
    if (threads > 1024) bad(fmt::format("{} threads per block, at most 1024", threads));
    if (block.z > 64) bad(fmt::format("block.z is {}, at most 64", block.z));
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        bad(fmt::format("grid ({},{},{}) too large", grid.x, grid.y, grid.z));
    if (shared_bytes > settings().shared_limit) bad(shared_memory_excess(0, shared_bytes, settings().shared_limit));
}

bool is_device_pointer(const void* p) { return DeviceMemory::instance().contains(p); }

void record_operations(bool on) {
    recording = on;
    if (on) records.clear();
}
const std::map<std::string, OperationRecord>& operations() { return records; }

void misaligned_access(const void* address, int alignment) {
    fail_kernel("misaligned vector access: %p is not a multiple of %d", address, alignment);
    std::fprintf(stderr, "misaligned vector access at %p by host code\n", address);
    std::abort();
}

// Ranks on one machine share its cores: each takes its part unless OMP_NUM_THREADS says otherwise.
static void choose_thread_count() {
    if (std::getenv("OMP_NUM_THREADS")) {
        // Libgomp exits without a message if it cannot start the threads.
        number_from_environment("OMP_NUM_THREADS", 1, 1024);
        return;
    }
    int ranks = 1;
    for (const char* name :
         {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"})
        if (const char* value = std::getenv(name)) {
            ranks = std::max(1, std::atoi(value));
            break;
        }
    const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    omp_set_num_threads(std::max(1, std::min(omp_get_num_procs(), cores / ranks)));
}

static size_t machine_memory() {
    std::FILE* f = std::fopen("/proc/meminfo", "r");
    if (!f) return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char text[256];
    size_t kilobytes = 0;
    while (std::fgets(text, sizeof text, f))
        if (std::sscanf(text, "MemAvailable: %zu", &kilobytes) == 1) break;
    std::fclose(f);
    return kilobytes << 10;
}

static size_t available_memory() {
    const size_t limit = settings().memory;
    return std::min(machine_memory(), limit - std::min(limit, MemoryLedger::instance().bytes()));
}
}  // namespace host

using namespace host;

// ---- device ---------------------------------------------------------------------------------------------------------

// Makes OpenMP threads sleep instead of spin while they wait, unless OMP_WAIT_POLICY says otherwise. On cores shared
// with another rank or program, a spinning thread blocks the one it waits for, and a step took 2500 instead of 110 ms
// (measured). libgomp reads its environment before main() and has no call to change this, so the process restarts
// itself once.
void prepare_process(char** argv) {
    if (std::getenv("OMP_WAIT_POLICY")) return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);  // returns only on failure; then the threads spin
}

int device_count() { return 1; }
void open_device(int) {
    choose_thread_count();
    settings();  // these two read the environment, and refuse invalid values before anything runs
    waits_after_work();
}

DeviceInfo device_info() {
    require_device("device_info");
    DeviceInfo info;
    info.multiprocessors = omp_get_max_threads();
    info.name = fmt::format("CPU ({} thread{})", info.multiprocessors, info.multiprocessors == 1 ? "" : "s");
    info.total_memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    info.free_memory = available_memory();
    info.is_host = true;
    info.has_fp8 = true;
    info.shared_memory_per_block = shared_memory_per_block();
    return info;
}
std::string device_pci_bus_id() { return ""; }
size_t shared_memory_per_block() { return settings().shared_limit; }

// ---- memory ---------------------------------------------------------------------------------------------------------

void* device_malloc(size_t bytes, MemoryKind kind) {
    require_device("device_malloc");
    const size_t available = kind == MemoryKind::offloaded ? machine_memory() : available_memory();
    if (bytes > (size_t{16} << 20) && bytes > available)
        throw Error(ExitCode::no_resources, "out of memory: {} MiB needed, {} MiB available", bytes >> 20,
                    available >> 20);
    void* p = DeviceMemory::instance().allocate(bytes);
    MemoryLedger::instance().add(p, bytes, kind);
    return p;
}
void device_free(void* p) {
    drain_all();
    DeviceMemory::instance().release(p);
    MemoryLedger::instance().remove(p);
    if (p) require_device("device_free");
}
size_t device_alignment() { return DeviceMemory::instance().alignment(); }
size_t device_bytes_in_use() { return MemoryLedger::instance().bytes(); }
MemoryUse device_memory_use(MemoryKind kind) { return MemoryLedger::instance().use(kind); }
void forget_memory_peaks() { MemoryLedger::instance().forget_peaks(); }

void* pinned_malloc(size_t bytes) {
    require_device("pinned_malloc");
    void* p = std::aligned_alloc(4096, (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096);
    if (!p) throw Error(ExitCode::no_resources, "out of memory: {} bytes of pinned memory", bytes);
    return p;
}
void pinned_free(void* p) {
    drain_all();
    std::free(p);
    require_device("pinned_free");
}

static void require_host_pointer(const void* p, const char* what) {
    if (is_device_pointer(p))
        throw Error(ExitCode::failure, "{}: device pointer {} where host memory is needed", what, p);
}

void copy_to_device(void* to, const void* from, size_t bytes, stream_t stream) {
    require_host_pointer(from, "copy_to_device");
    submit(stream, {out(static_cast<char*>(to), bytes)}, {"copy_to_device", "", 0},
           [=] { std::memcpy(to, from, bytes); });
}
void copy_to_host(void* to, const void* from, size_t bytes, stream_t stream) {
    require_host_pointer(to, "copy_to_host");
    submit(stream, {in(static_cast<const char*>(from), bytes)}, {"copy_to_host", "", 0},
           [=] { std::memcpy(to, from, bytes); });
}
void copy_on_device(void* to, const void* from, size_t bytes, stream_t stream) {
    submit(stream, {in(static_cast<const char*>(from), bytes), out(static_cast<char*>(to), bytes)},
           {"copy_on_device", "", 0}, [=] { std::memmove(to, from, bytes); });
}
void set_bytes(void* to, int value, size_t bytes, stream_t stream) {
    submit(stream, {out(static_cast<char*>(to), bytes)}, {"set_bytes", "", 0}, [=] { std::memset(to, value, bytes); });
}

// ---- streams and events ---------------------------------------------------------------------------------------------

stream_t create_stream(StreamPriority priority) {
    require_device("create_stream");
    streams.push_back(new Stream);
    streams.back()->priority = priority;
    return streams.back();
}
StreamPriority stream_priority(stream_t stream) { return stream->priority; }
void destroy_stream(stream_t stream) {
    if (!stream) return;
    drain(stream);
    std::erase(streams, stream);
    delete stream;
    require_device("destroy_stream");
}
void synchronize(stream_t stream) {
    require_device("synchronize");
    if (stream)
        drain(stream);
    else
        drain_all();
    require_device("synchronize");
}
void synchronize_device() {
    require_device("synchronize_device");
    drain_all();
    require_device("synchronize_device");
}
void after_work(stream_t stream, const LaunchSite& site) {
    if (!waits_after_work()) return;
    if (stream) drain(stream);
    if (broken) throw named_fault(site, kFault);
}

event_t create_event(bool) {
    require_device("create_event");
    return new Event;
}
void destroy_event(event_t event) {
    delete event;
    require_device("destroy_event");
}

void record(event_t event, stream_t stream) {
    require_device("record");
    event->last = std::make_shared<Mark>();
    event->last->stream = stream;
    push(stream, {Operation::record, {}, {}, {}, event->last});
}

void wait(stream_t stream, event_t event) {
    require_device("wait");
    if (!event->last) return;  // as in CUDA, an event that was never recorded is not waited for
    push(stream, {Operation::wait, {}, {}, {}, event->last});
}

void synchronize(event_t event) {
    require_device("synchronize");
    if (event->last) run_until(*event->last);
    require_device("synchronize");
}
bool is_done(event_t event) {
    require_device("is_done");
    return !event->last || event->last->done;
}
float elapsed_ms(event_t from, event_t to) {
    require_device("elapsed_ms");
    if (!from->last || !to->last || !from->last->done || !to->last->done)
        throw Error(ExitCode::failure, "elapsed_ms: an event has not been reached yet; synchronize with it first");
    return static_cast<float>((to->last->time - from->last->time) * 1e3);
}

void push_range(const char*) {}
void pop_range() {}

}  // namespace llmc
