// Measures the time of every kernel of an unmodified CUDA program: a library that the driver loads into the program and
// that asks CUPTI for its kernels, copies and fills.
//
//   CUDA_INJECTION64_PATH=libkernel_times.so KERNEL_TIMES=times.json train_gpt ...
//
// It writes {"kernels": [{"name", "count", "ns", "registers", "shared"}], "span_ns", "dropped"} when the program ends.
// The loader must find libcupti. The program's stream order does not change, so a step takes its usual time.
//
// With HOLD_MULTIPROCESSORS=N, N multiprocessors are held for half of the time from the program's first kernel on. Each
// kernel then also has "launches": [[start, ns], ...]. N = 0 only writes these.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hold_multiprocessors.h"

namespace {

struct Times {
    uint64_t ns = 0;
    std::vector<std::pair<uint64_t, uint64_t>> launches;  // start, end
    int registers = 0, shared = 0;
};
std::mutex mutex;
std::map<std::string, Times> kernels;
uint64_t first_start = ~uint64_t{0}, last_end = 0;
size_t dropped = 0;

constexpr size_t kBufferBytes = size_t{8} << 20;

const char* const held = std::getenv("HOLD_MULTIPROCESSORS");
std::once_flag holding;

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
    *size = kBufferBytes;
    *records = 0;
    // The program is about to launch its first kernel, so the GPU is initialized.
    if (held) std::call_once(holding, [] { start_holding(std::atoi(held)); });
}

void count(const std::string& name, uint64_t start, uint64_t end, int registers, int shared) {
    Times& times = kernels[name];
    times.ns += end - start;
    times.launches.emplace_back(start, end);
    times.registers = registers;
    times.shared = shared;
    first_start = std::min(first_start, start);
    last_end = std::max(last_end, end);
}

void CUPTIAPI complete_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    const std::lock_guard<std::mutex> lock(mutex);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
            const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
            count(kernel->name ? kernel->name : "?", kernel->start, kernel->end, kernel->registersPerThread,
                  kernel->staticSharedMemory + kernel->dynamicSharedMemory);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
            count("[copy]", copy->start, copy->end, 0, 0);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
            count("[fill]", fill->start, fill->end, 0, 0);
        }
    }
    size_t lost = 0;
    cuptiActivityGetNumDroppedRecords(nullptr, 0, &lost);
    dropped += lost;
    std::free(buffer);
}

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) result += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return result + "\"";
}

void write_launches(FILE* file, const Times& times) {
    const char* separator = ", \"launches\": [";
    for (const auto& [start, end] : times.launches) {
        std::fprintf(file, "%s[%llu,%llu]", separator, static_cast<unsigned long long>(start - first_start),
                     static_cast<unsigned long long>(end - start));
        separator = ",";
    }
    std::fprintf(file, "]");
}

void write_times() {
    stop_holding();
    cuptiActivityFlushAll(1);
    const char* path = std::getenv("KERNEL_TIMES");
    FILE* file = std::fopen(path ? path : "kernel_times.json", "w");
    if (!file) return;
    const std::lock_guard<std::mutex> lock(mutex);
    std::fprintf(file, "{\"span_ns\": %llu, \"dropped\": %zu, \"kernels\": [",
                 static_cast<unsigned long long>(last_end > first_start ? last_end - first_start : 0), dropped);
    const char* separator = "\n";
    for (const auto& [name, times] : kernels) {
        std::fprintf(file, "%s{\"name\": %s, \"count\": %zu, \"ns\": %llu, \"registers\": %d, \"shared\": %d",
                     separator, quoted(name).c_str(), times.launches.size(), static_cast<unsigned long long>(times.ns),
                     times.registers, times.shared);
        if (held) write_launches(file, times);
        std::fprintf(file, "}");
        separator = ",\n";
    }
    std::fprintf(file, "\n]}\n");
    std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
    if (cuptiActivityRegisterCallbacks(request_buffer, complete_buffer) != CUPTI_SUCCESS) return 1;
    for (const auto kind :
         {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
        cuptiActivityEnable(kind);
    std::atexit(write_times);
    return 1;
}
