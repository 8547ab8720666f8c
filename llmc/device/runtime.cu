// The device runtime (runtime.h) on CUDA. Only nvcc compiles this file.
#include "llmc/device/runtime.h"

#if LLMC_CUDA
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <map>
#include <mutex>
#include <utility>

#include "llmc/device/cuda_calls.h"
#include "llmc/device/gpu_rules.h"
#include "llmc/device/memory_ledger.h"

namespace llmc {

static __global__ void probe_kernel() {}  // its attributes tell whether this binary has code for the GPU

static std::string describe(cudaError_t status) {
    return fmt::format("{} ({})", cudaGetErrorName(status), cudaGetErrorString(status));
}

// True for errors of running work, which the next call returns, whichever it is.
static bool is_fault(cudaError_t status) {
    switch (status) {
        case cudaErrorIllegalAddress:
        case cudaErrorMisalignedAddress:
        case cudaErrorIllegalInstruction:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorHardwareStackError:
        case cudaErrorAssert:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
            return true;
        default:
            return false;
    }
}

static int current_device() {
    int device = 0;
    LLMC_CHECK_CUDA(cudaGetDevice(&device));
    return device;
}

// Formats a UUID as nvidia-smi does.
static std::string uuid_text(const char (&bytes)[16]) {
    std::string text = "GPU";
    for (int i = 0; i < 16; i++) {
        if (i == 0 || (i >= 4 && i <= 10 && i % 2 == 0)) text += "-";
        text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
    }
    return text;
}

void check_cuda(cudaError_t status, const char* what, const char* file, int line) {
    if (status == cudaSuccess) return;
    if (is_fault(status)) throw late_fault(fmt::format("{}:{}: {}", file, line, what), describe(status));
    const bool memory = status == cudaErrorMemoryAllocation;
    throw Error(memory ? ExitCode::no_resources : ExitCode::failure,
                fmt::format("{}:{}: {} failed: {}", file, line, what, describe(status)));
}

void after_work(stream_t stream, const LaunchSite& site) {
    if (!waits_after_work()) return;
    const cudaError_t status = cudaStreamSynchronize(stream);
    if (status != cudaSuccess) throw named_fault(site, describe(status));
}

// A block may use 48 KB without asking, static arrays and dynamic memory together. More dynamic memory is requested per
// kernel and device. A request sets the kernel's limit, even to a lower value.
void provide_shared_memory(const void* kernel, size_t dynamic_bytes, const LaunchSite& site) {
    static std::mutex mutex;
    static std::map<std::pair<const void*, int>, size_t> most;  // dynamic bytes of past launches, by kernel and device
    const std::lock_guard lock(mutex);
    size_t& provided = most[{kernel, current_device()}];
    if (dynamic_bytes <= provided) return;
    cudaFuncAttributes attributes;
    LLMC_CHECK_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    const size_t limit = shared_memory_per_block();
    if (attributes.sharedSizeBytes + dynamic_bytes > limit)
        throw Error(ExitCode::failure, "{} [kernel {} launched at {}:{}]",
                    shared_memory_excess(attributes.sharedSizeBytes, dynamic_bytes, limit), site.kernel, site.file,
                    site.line);
    const int bytes = static_cast<int>(dynamic_bytes);
    if (bytes > attributes.maxDynamicSharedSizeBytes)
        check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), site.kernel,
                   site.file, site.line);
    provided = dynamic_bytes;
}

void prepare_process(char**) {}

int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void open_device(int index) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0)
        throw Error(ExitCode::no_resources,
                    "no usable GPU ({}). The CPU builds need none: make train_gpt_cpu, or make check_card_cpu",
                    status == cudaSuccess ? "none found" : cudaGetErrorString(status));
    if (index >= count)
        throw Error(ExitCode::no_resources, "GPU {} is needed, but only {} are visible, counted from 0", index, count);
    LLMC_CHECK_CUDA(cudaSetDevice(index));
    waits_after_work();  // reads LLMC_SYNC and refuses invalid values before anything runs
    // Without code for this GPU the first kernel would fail; this gives a clear message instead.
    const DeviceInfo info = device_info();
    cudaFuncAttributes attributes;
    const cudaError_t probed = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel));
    if (!has_code_for(LLMC_GPU_ARCHS, info.compute_capability) || probed == cudaErrorNoKernelImageForDevice ||
        probed == cudaErrorInvalidDeviceFunction)
        throw Error(ExitCode::no_resources, no_code_message(LLMC_GPU_ARCHS, info.name, info.compute_capability));
    check_cuda(probed, "cudaFuncGetAttributes", __FILE__, __LINE__);
}
DeviceInfo device_info() {
    cudaDeviceProp properties;
    LLMC_CHECK_CUDA(cudaGetDeviceProperties(&properties, current_device()));
    DeviceInfo info;
    info.name = properties.name;
    info.multiprocessors = properties.multiProcessorCount;
    info.compute_capability = properties.major * 10 + properties.minor;
    info.has_fp8 = info.compute_capability >= 89;
    info.l2_cache = static_cast<size_t>(properties.l2CacheSize);
    info.uuid = uuid_text(properties.uuid.bytes);
    info.shared_memory_per_block = shared_memory_per_block();
    LLMC_CHECK_CUDA(cudaMemGetInfo(&info.free_memory, &info.total_memory));
    return info;
}
std::string device_pci_bus_id() {
    cudaDeviceProp properties;
    LLMC_CHECK_CUDA(cudaGetDeviceProperties(&properties, current_device()));
    return fmt::format("{:08x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
}
size_t shared_memory_per_block() {
    int bytes = 0;
    LLMC_CHECK_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device()));
    return static_cast<size_t>(bytes);
}

static void* offloaded_malloc(size_t bytes) {
    void* p = nullptr;
    const cudaError_t status = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw Error(ExitCode::no_resources, "out of host memory: {} MiB of pinned memory needed for --offload",
                    bytes >> 20);
    }
    check_cuda(status, "cudaHostAlloc", __FILE__, __LINE__);
    MemoryLedger::instance().add(p, bytes, MemoryKind::offloaded);
    return p;
}

// The direction of a copy. If `side` is offloaded memory, CUDA has to find it from the addresses.
static cudaMemcpyKind direction(const void* side, cudaMemcpyKind otherwise) {
    return MemoryLedger::instance().is_offloaded(side) ? cudaMemcpyDefault : otherwise;
}

void* device_malloc(size_t bytes, MemoryKind kind) {
    if (kind == MemoryKind::offloaded) return offloaded_malloc(bytes);
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, bytes ? bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        const DeviceInfo info = device_info();
        throw Error(ExitCode::no_resources, "out of GPU memory: {} MiB needed, {} MiB free of {} MiB on {}",
                    bytes >> 20, info.free_memory >> 20, info.total_memory >> 20, info.name);
    }
    check_cuda(status, "cudaMalloc", __FILE__, __LINE__);
    MemoryLedger::instance().add(p, bytes, kind);
    return p;
}
void device_free(void* p) {
    if (!p) return;
    const bool offloaded = MemoryLedger::instance().is_offloaded(p);
    MemoryLedger::instance().remove(p);
    LLMC_CHECK_CUDA(offloaded ? cudaFreeHost(p) : cudaFree(p));
}
size_t device_alignment() { return 256; }
size_t device_bytes_in_use() { return MemoryLedger::instance().bytes(); }
MemoryUse device_memory_use(MemoryKind kind) { return MemoryLedger::instance().use(kind); }
void forget_memory_peaks() { MemoryLedger::instance().forget_peaks(); }

void* pinned_malloc(size_t bytes) {
    void* p = nullptr;
    LLMC_CHECK_CUDA(cudaMallocHost(&p, bytes ? bytes : 1));
    return p;
}
void pinned_free(void* p) { LLMC_CHECK_CUDA(cudaFreeHost(p)); }

void copy_to_device(void* to, const void* from, size_t bytes, stream_t stream) {
    LLMC_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, direction(to, cudaMemcpyHostToDevice), stream));
}
void copy_to_host(void* to, const void* from, size_t bytes, stream_t stream) {
    LLMC_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, direction(from, cudaMemcpyDeviceToHost), stream));
}
void copy_on_device(void* to, const void* from, size_t bytes, stream_t stream) {
    const cudaMemcpyKind kind = direction(from, direction(to, cudaMemcpyDeviceToDevice));
    LLMC_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream));
}
void set_bytes(void* to, int value, size_t bytes, stream_t stream) {
    LLMC_CHECK_CUDA(cudaMemsetAsync(to, value, bytes, stream));
}

stream_t create_stream(StreamPriority priority) {
    int least = 0, greatest = 0;  // smaller numbers have higher priority
    LLMC_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    stream_t stream;
    LLMC_CHECK_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                 priority == StreamPriority::communication ? greatest : least));
    return stream;
}
StreamPriority stream_priority(stream_t stream) {
    int least = 0, greatest = 0, priority = 0;
    LLMC_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    LLMC_CHECK_CUDA(cudaStreamGetPriority(stream, &priority));
    return priority < least ? StreamPriority::communication : StreamPriority::normal;
}
void destroy_stream(stream_t stream) { LLMC_CHECK_CUDA(cudaStreamDestroy(stream)); }
void synchronize(stream_t stream) { LLMC_CHECK_CUDA(cudaStreamSynchronize(stream)); }
void synchronize_device() { LLMC_CHECK_CUDA(cudaDeviceSynchronize()); }

event_t create_event(bool timing) {
    event_t event;
    LLMC_CHECK_CUDA(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
    return event;
}
void destroy_event(event_t event) { LLMC_CHECK_CUDA(cudaEventDestroy(event)); }
void record(event_t event, stream_t stream) { LLMC_CHECK_CUDA(cudaEventRecord(event, stream)); }
void wait(stream_t stream, event_t event) { LLMC_CHECK_CUDA(cudaStreamWaitEvent(stream, event, 0)); }
void synchronize(event_t event) { LLMC_CHECK_CUDA(cudaEventSynchronize(event)); }
bool is_done(event_t event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "cudaEventQuery", __FILE__, __LINE__);
    return true;
}
float elapsed_ms(event_t from, event_t to) {
    float ms = 0;
    LLMC_CHECK_CUDA(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

void push_range(const char* name) { nvtxRangePushA(name); }
void pop_range() { nvtxRangePop(); }

}  // namespace llmc
#endif
