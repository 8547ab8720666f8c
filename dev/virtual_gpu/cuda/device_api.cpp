// Device queries, answered from the properties of the simulated card.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/options.h"

namespace virtual_gpu {
namespace {

thread_local int device_of_thread = 0;
thread_local bool chose_device = false;
std::atomic<bool> first_is_unused{false};  // a thread chose another device than 0

bool exists(int device) { return device >= 0 && device < options().devices; }

// Finds an attribute's value. Returns false if the virtual GPU does not know the attribute.
bool find_attribute(cudaDeviceAttr attribute, int device, int& value) {
    const Card& c = card();
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
            value = kThreadsPerBlock;
            return true;
        case cudaDevAttrMaxBlockDimX:
            value = kLargestBlock[0];
            return true;
        case cudaDevAttrMaxBlockDimY:
            value = kLargestBlock[1];
            return true;
        case cudaDevAttrMaxBlockDimZ:
            value = kLargestBlock[2];
            return true;
        case cudaDevAttrMaxGridDimX:
            value = kLargestGrid[0];
            return true;
        case cudaDevAttrMaxGridDimY:
            value = kLargestGrid[1];
            return true;
        case cudaDevAttrMaxGridDimZ:
            value = kLargestGrid[2];
            return true;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            value = kSharedWithoutOptIn;
            return true;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            value = c.shared_per_block;
            return true;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            value = c.shared_per_multiprocessor;
            return true;
        case cudaDevAttrReservedSharedMemoryPerBlock:
            value = kSharedReserved;
            return true;
        case cudaDevAttrMaxRegistersPerBlock:
            value = kRegistersPerMultiprocessor;
            return true;
        case cudaDevAttrMaxRegistersPerMultiprocessor:
            value = kRegistersPerMultiprocessor;
            return true;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            value = c.threads_per_multiprocessor;
            return true;
        case cudaDevAttrMaxBlocksPerMultiprocessor:
            value = c.blocks_per_multiprocessor;
            return true;
        case cudaDevAttrMultiProcessorCount:
            value = c.multiprocessors;
            return true;
        case cudaDevAttrComputeCapabilityMajor:
            value = c.capability / 10;
            return true;
        case cudaDevAttrComputeCapabilityMinor:
            value = c.capability % 10;
            return true;
        case cudaDevAttrWarpSize:
            value = 32;
            return true;
        case cudaDevAttrClockRate:
            value = c.clock_khz;
            return true;
        case cudaDevAttrMemoryClockRate:
            value = c.memory_clock_khz;
            return true;
        case cudaDevAttrGlobalMemoryBusWidth:
            value = c.memory_bus_bits;
            return true;
        case cudaDevAttrL2CacheSize:
            value = static_cast<int>(c.l2_bytes);
            return true;
        case cudaDevAttrConcurrentKernels:
            value = 1;
            return true;
        case cudaDevAttrStreamPrioritiesSupported:
            value = 1;
            return true;
        case cudaDevAttrUnifiedAddressing:
            value = 1;
            return true;
        case cudaDevAttrIntegrated:
            value = 0;
            return true;
        case cudaDevAttrManagedMemory:
            value = 0;
            return true;
        case cudaDevAttrEccEnabled:
            value = 0;
            return true;
        case cudaDevAttrPciDomainId:
            value = 0;
            return true;
        case cudaDevAttrPciBusId:
            value = device + 1;
            return true;
        case cudaDevAttrPciDeviceId:
            value = 0;
            return true;
        default:
            return false;
    }
}

// A UUID that differs by card, device and VIRTUAL_GPU_UUID and is the same in every process: FNV-1a, once per half.
cudaUUID_t uuid_of(int device) {
    const std::string text = (options().uuid.empty() ? card().model : options().uuid) + std::to_string(device);
    cudaUUID_t uuid;
    for (size_t half = 0; half < 2; half++) {
        uint64_t hash = 0xcbf29ce484222325 + half;
        for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
        std::memcpy(uuid.bytes + 8 * half, &hash, 8);
    }
    return uuid;
}

}  // namespace

int current_device() { return device_of_thread; }
bool opens_first_device() { return first_is_unused && !chose_device; }

}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = options().devices;
    return returned(*count ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    chose_device = true;
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    if (options().devices == 0) return returned(cudaErrorNoDevice);
    if (!exists(device)) return returned(cudaErrorInvalidDevice);
    device_of_thread = device;
    if (device > 0) first_is_unused = true;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    if (options().devices == 0) return returned(cudaErrorNoDevice);
    *device = device_of_thread;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (!exists(device)) return returned(options().devices ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    const Card& c = card();
    *p = {};
    std::snprintf(p->name, sizeof p->name, "%s", c.model);
    p->uuid = uuid_of(device);
    p->totalGlobalMem = c.memory_bytes;
    p->totalConstMem = 65536;
    p->sharedMemPerBlock = kSharedWithoutOptIn;
    p->sharedMemPerBlockOptin = static_cast<size_t>(c.shared_per_block);
    p->sharedMemPerMultiprocessor = static_cast<size_t>(c.shared_per_multiprocessor);
    p->reservedSharedMemPerBlock = kSharedReserved;
    p->regsPerBlock = p->regsPerMultiprocessor = kRegistersPerMultiprocessor;
    p->warpSize = 32;
    p->maxThreadsPerBlock = kThreadsPerBlock;
    p->maxThreadsPerMultiProcessor = c.threads_per_multiprocessor;
    p->maxBlocksPerMultiProcessor = c.blocks_per_multiprocessor;
    std::memcpy(p->maxThreadsDim, kLargestBlock, sizeof kLargestBlock);
    std::memcpy(p->maxGridSize, kLargestGrid, sizeof kLargestGrid);
    p->major = c.capability / 10;
    p->minor = c.capability % 10;
    p->multiProcessorCount = c.multiprocessors;
    p->l2CacheSize = static_cast<int>(c.l2_bytes);
    p->memoryBusWidth = c.memory_bus_bits;
    p->pciBusID = device + 1;  // bus of domain 0, device 0
    p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = p->canMapHostMemory = 1;
    p->asyncEngineCount = 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (!exists(device)) return returned(options().devices ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    if (find_attribute(attribute, device, *value)) return cudaSuccess;
    report("cudaDeviceGetAttribute: attribute %d is not supported", static_cast<int>(attribute));
    return returned(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
    if (!exists(device)) return returned(cudaErrorInvalidDevice);
    if (!id || length < 13) return returned(cudaErrorInvalidValue);
    std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device) + 1);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    if (!version) return returned(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    if (!version) return returned(cudaErrorInvalidValue);
    *version = options().driver_version ? options().driver_version : CUDART_VERSION;
    return cudaSuccess;
}

}  // extern "C"
