// The runtime's error state, error names, and messages (errors.h).
#include "dev/virtual_gpu/cuda/errors.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "dev/virtual_gpu/cuda/streams.h"

namespace virtual_gpu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;
std::atomic<cudaError_t> lost{cudaSuccess};
std::atomic<bool> unloading{false};

struct Words {
    cudaError_t error;
    const char *name, *text;
};
#define WORDS(error, text) \
    { error, #error, text }
constexpr Words kWords[] = {
    WORDS(cudaSuccess, "no error"),
    WORDS(cudaErrorInvalidValue, "invalid argument"),
    WORDS(cudaErrorMemoryAllocation, "out of memory"),
    WORDS(cudaErrorInitializationError, "initialization error"),
    WORDS(cudaErrorCudartUnloading, "driver shutting down"),
    WORDS(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    WORDS(cudaErrorInvalidSymbol, "invalid device symbol"),
    WORDS(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    WORDS(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    WORDS(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    WORDS(cudaErrorInvalidDeviceFunction, "invalid device function"),
    WORDS(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    WORDS(cudaErrorInvalidDevice, "invalid device ordinal"),
    WORDS(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    WORDS(cudaErrorDeviceUninitialized, "invalid device context"),
    WORDS(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    WORDS(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    WORDS(cudaErrorUnsupportedLimit, "limit is not supported on this architecture"),
    WORDS(cudaErrorInvalidPtx, "a PTX JIT compilation failed"),
    WORDS(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution"),
    WORDS(cudaErrorUnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain."),
    WORDS(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    WORDS(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    WORDS(cudaErrorSymbolNotFound, "named symbol not found"),
    WORDS(cudaErrorNotReady, "device not ready"),
    WORDS(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    WORDS(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    WORDS(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    WORDS(cudaErrorAssert, "device-side assert triggered"),
    WORDS(cudaErrorHardwareStackError, "hardware stack error"),
    WORDS(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    WORDS(cudaErrorMisalignedAddress, "misaligned address"),
    WORDS(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    WORDS(cudaErrorInvalidPc, "invalid program counter"),
    WORDS(cudaErrorLaunchFailure, "unspecified launch failure"),
    WORDS(cudaErrorNotPermitted, "operation not permitted"),
    WORDS(cudaErrorNotSupported, "operation not supported"),
    WORDS(cudaErrorUnknown, "unknown error"),
};
#undef WORDS

const Words* words_of(cudaError_t error) {
    for (const Words& w : kWords)
        if (w.error == error) return &w;
    return nullptr;
}

bool mentions(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

cudaError_t returned(cudaError_t status) {
    if (status != cudaSuccess) last_error = status;
    return status;
}

cudaError_t entered() {
    if (unloading) return returned(cudaErrorCudartUnloading);
    if (in_host_function) {
        report("a function that a stream calls on the host calls CUDA");
        return returned(cudaErrorNotPermitted);
    }
    if (opens_first_device()) {
        report("a thread calls CUDA without cudaSetDevice(), so CUDA creates a context on device 0 for it");
        return returned(cudaErrorInvalidDevice);
    }
    return returned(device_error());
}

cudaError_t device_error() { return lost; }
void set_device_error(cudaError_t error) {
    cudaError_t none = cudaSuccess;
    lost.compare_exchange_strong(none, error);
}
void set_unloading() { unloading = true; }
void set_in_host_function(bool inside) { in_host_function = inside; }

// Classifies by the texts that ptx/ and Memory use.
cudaError_t error_of(const Fault& fault) {
    const std::string text = fault.what();
    if (mentions(text, ": misaligned ")) return cudaErrorMisalignedAddress;
    if (mentions(text, " bytes at ")) return cudaErrorIllegalAddress;
    if (mentions(text, "): trap")) return cudaErrorLaunchFailure;  // CUDA has no more specific error for it
    if (mentions(text, "instruction not known")) return cudaErrorIllegalInstruction;
    return cudaErrorLaunchFailure;
}

void report(const char* text, ...) {
    char line[4000];
    va_list arguments;
    va_start(arguments, text);
    std::vsnprintf(line, sizeof line, text, arguments);
    va_end(arguments);
    std::fprintf(stderr, "virtual GPU: %s\n", line);  // one call, so that lines of different threads do not mix
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

// CUDA Runtime API, "Error Handling": returns the thread's last error and clears it. An error of the device cannot be
// cleared by any call.
cudaError_t cudaGetLastError() {
    const cudaError_t last = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return last;
}
cudaError_t cudaPeekAtLastError() { return last_error != cudaSuccess ? last_error : device_error(); }

const char* cudaGetErrorName(cudaError_t error) {
    const Words* words = words_of(error);
    return words ? words->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
    const Words* words = words_of(error);
    return words ? words->text : "unrecognized error code";
}

}  // extern "C"
