// Registration, lookup and launch of kernels (functions.h).
#include "dev/virtual_gpu/cuda/functions.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/cuda/fat_binary.h"
#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/planned_faults.h"

namespace virtual_gpu {
namespace {

// A fat binary: the code of one source file. Its PTX is read when its first kernel is needed.
struct Module {
    const void* data = nullptr;
    bool read = false;
    cudaError_t error = cudaSuccess;
    Choice choice;
    std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

struct Function {
    Module* module = nullptr;
    std::string name;
    Kernel* kernel = nullptr;
    std::map<int, size_t> dynamic_limits;  // by device, if the program set them
};

// Created on first use, because programs register before this file's static objects exist.
std::recursive_mutex& mutex() {
    static auto* const m = new std::recursive_mutex;
    return *m;
}
std::map<const void*, Function>& functions() {
    static auto* const all = new std::map<const void*, Function>;
    return *all;
}

cudaError_t read_image(Module& module) {
    module.choice = choose_image(read_fat_binary(module.data), card().capability);
    if (!module.choice.missing.empty()) {
        report("%s", module.choice.missing.c_str());
        return cudaErrorNoKernelImageForDevice;
    }
    if (module.choice.ptx.empty()) return cudaErrorNoKernelImageForDevice;
    std::map<std::string, int> registers;
    if (!module.choice.cubin.empty()) registers = registers_of(module.choice.cubin);
    for (auto& kernel : read_module(module.choice.ptx)) {
        const auto found = registers.find(kernel->name);
        if (found != registers.end()) kernel->registers = found->second;
        module.kernels[kernel->name] = std::move(kernel);
    }
    return cudaSuccess;
}

void read(Module& module) {
    if (module.read) return;
    module.read = true;
    try {
        module.error = read_image(module);
    } catch (const Fault& fault) {
        report("a module cannot be read: %s", fault.what());
        module.error = cudaErrorInvalidKernelImage;
    }
}

// Finds the function that was registered for a host address, with its kernel. The caller holds mutex().
cudaError_t find(const void* host, Function*& function) {
    const auto found = functions().find(host);
    if (found == functions().end()) return cudaErrorInvalidDeviceFunction;
    function = &found->second;
    Module& module = *function->module;
    read(module);
    if (module.error != cudaSuccess) return module.error;
    const auto kernel = module.kernels.find(function->name);
    if (kernel == module.kernels.end()) return cudaErrorInvalidDeviceFunction;
    function->kernel = kernel->second.get();
    return cudaSuccess;
}

size_t dynamic_limit(const Function& function) {
    const auto set = function.dynamic_limits.find(current_device());
    if (set != function.dynamic_limits.end()) return set->second;
    const size_t fixed = function.kernel->shared_bytes;
    return fixed < kSharedWithoutOptIn ? kSharedWithoutOptIn - fixed : 0;
}

void copy_parameters(Launch& launch, void** arguments) {
    launch.parameters.assign(launch.kernel->parameter_bytes, 0xFF);
    for (size_t i = 0; i < launch.kernel->parameters.size(); i++) {
        const Parameter& p = launch.kernel->parameters[i];
        std::memcpy(launch.parameters.data() + p.offset, arguments[i], p.bytes);
    }
}

// A readiness check that is always false, and says so once.
std::function<bool()> never_ending(const std::string& what) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) report("%s never ends: VIRTUAL_GPU_FAULT=hang-kernel", what.c_str());
    return [] { return false; };
}

// Counts the launches of the process, for planned faults that name one.
cudaError_t submit_launch(cudaStream_t stream, Launch launch) {
    static std::atomic<long> launches{0};
    const long count = ++launches;
    const std::string what = "kernel " + launch.kernel->readable;
    if (count == planned_fault("kernel"))
        return submit(stream, what, [count] { fault("lost on purpose: VIRTUAL_GPU_FAULT=kernel:%ld", count); });
    if (lies("fail-kernel", launch.kernel->readable))
        return submit(stream, what, [] { fault("lost on purpose: VIRTUAL_GPU_FAULT=fail-kernel"); });
    std::function<bool()> ready;
    if (lies("hang-kernel", launch.kernel->readable)) ready = never_ending(what);
    return submit(
        stream, what, [launch = std::move(launch)] { run_grid(launch); }, std::move(ready));
}

cudaError_t launch_kernel(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared,
                          cudaStream_t stream) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    Launch launch{nullptr, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, 0, {}};
    {
        const std::lock_guard lock(mutex());
        Function* function = nullptr;
        const cudaError_t found = find(host, function);
        if (found != cudaSuccess) return returned(found);
        launch.kernel = function->kernel;
        launch.dynamic_shared_bytes = static_cast<uint32_t>(std::min<size_t>(shared, UINT32_MAX));
        const Refusal refusal = check_launch(card(), *function->kernel, launch, dynamic_limit(*function));
        if (refusal.error != cudaSuccess) {
            report("kernel %s: %s", function->kernel->readable.c_str(), refusal.why.c_str());
            return returned(refusal.error);
        }
    }
    copy_parameters(launch, arguments);
    return submit_launch(stream, std::move(launch));
}

const char* name_of(cudaLaunchAttributeID attribute) {
    switch (attribute) {
        case cudaLaunchAttributeAccessPolicyWindow:
            return "cudaLaunchAttributeAccessPolicyWindow";
        case cudaLaunchAttributeCooperative:
            return "cudaLaunchAttributeCooperative";
        case cudaLaunchAttributeClusterDimension:
            return "cudaLaunchAttributeClusterDimension";
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            return "cudaLaunchAttributeProgrammaticStreamSerialization";
        case cudaLaunchAttributeProgrammaticEvent:
            return "cudaLaunchAttributeProgrammaticEvent";
        case cudaLaunchAttributePriority:
            return "cudaLaunchAttributePriority";
        default:
            return "a launch attribute";
    }
}

}  // namespace

int registers_of_block(int registers_per_thread, uint32_t threads) {
    constexpr int kUnit = 256, kParts = 4, kWarp = 32;  // cuda_occupancy.h, "cudaOccMaxBlocksPerSMRegsLimit"
    const int warps = (static_cast<int>(threads) + kWarp - 1) / kWarp;
    const int per_warp = (registers_per_thread * kWarp + kUnit - 1) / kUnit * kUnit;
    return per_warp * ((warps + kParts - 1) / kParts * kParts);
}

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". The errors are those of
// cudaLaunchKernel().
Refusal check_launch(const Card& card, const Kernel& kernel, const Launch& launch, size_t dynamic_limit) {
    constexpr size_t kMaxParameterBytes = 32764;
    const uint32_t *grid = launch.grid, *block = launch.block;
    for (int d = 0; d < 3; d++)
        if (grid[d] < 1 || grid[d] > static_cast<uint32_t>(kLargestGrid[d]) || block[d] < 1 ||
            block[d] > static_cast<uint32_t>(kLargestBlock[d]))
            return {cudaErrorInvalidConfiguration, format("grid (%u,%u,%u), block (%u,%u,%u)", grid[0], grid[1],
                                                          grid[2], block[0], block[1], block[2])};
    const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
    if (threads > uint64_t{kThreadsPerBlock})
        return {cudaErrorInvalidConfiguration,
                format("%llu threads a block, %d at most", static_cast<unsigned long long>(threads), kThreadsPerBlock)};
    if (threads > kernel.max_threads)
        return {cudaErrorInvalidValue, format("%llu threads a block, .maxntid allows %u",
                                              static_cast<unsigned long long>(threads), kernel.max_threads)};
    const size_t dynamic = launch.dynamic_shared_bytes;
    if (dynamic > dynamic_limit)
        return {cudaErrorInvalidValue,
                format("%zu bytes of dynamic shared memory beside %u static ones; %zu are granted "
                       "(cudaFuncAttributeMaxDynamicSharedMemorySize)",
                       dynamic, kernel.shared_bytes, dynamic_limit)};
    if (dynamic + kernel.shared_bytes > static_cast<size_t>(card.shared_per_block))
        return {cudaErrorInvalidValue, format("%zu bytes of shared memory, %d a block on %s",
                                              dynamic + kernel.shared_bytes, card.shared_per_block, card.name)};
    const int registers = registers_of_block(kernel.registers, static_cast<uint32_t>(threads));
    if (kernel.registers > kRegistersPerThread || registers > kRegistersPerMultiprocessor)
        return {cudaErrorLaunchOutOfResources,
                format("%d registers a thread, %d for a block of %llu threads: there are %d", kernel.registers,
                       registers, static_cast<unsigned long long>(threads), kRegistersPerMultiprocessor)};
    if (kernel.parameter_bytes > kMaxParameterBytes)
        return {cudaErrorInvalidValue, format("%u bytes of parameters", kernel.parameter_bytes)};
    return {};
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

// ---- what nvcc's code calls -----------------------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
    struct Wrapper {  // as in fatbinary_section.h
        int magic, version;
        const void* data;
        void* unused;
    };
    auto* const module = new Module;
    module->data = static_cast<const Wrapper*>(wrapper)->data;
    return reinterpret_cast<void**>(module);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}  // called at the end of the process, when kernels may still run
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    const std::lock_guard lock(mutex());
    Function& function = functions()[host];
    function = {};
    function.module = reinterpret_cast<Module*>(handle);
    function.name = name;
}
void __cudaRegisterVar(void**, char*, char*, const char* name, int, size_t, int, int) {
    report("device variable %s: not supported", name);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    const std::lock_guard lock(mutex());
    if (!functions().contains(host)) return returned(cudaErrorInvalidDeviceFunction);
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
    return launch_kernel(kernel, grid, block, arguments, shared, stream);
}

// The configuration between <<< and >>>, on its way to the kernel's host function.
static thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    pushed = {grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *static_cast<cudaStream_t*>(stream) = pushed.stream;
    return cudaSuccess;
}

// ---- the API --------------------------------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
    return launch_kernel(function, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
    if (!config) return returned(cudaErrorInvalidValue);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttributeID id = config->attrs[i].id;
        if (id == cudaLaunchAttributeIgnore) continue;
        report("%s (%d) is not supported", name_of(id), static_cast<int>(id));
        return returned(cudaErrorNotSupported);
    }
    return launch_kernel(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                         config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    const std::lock_guard lock(mutex());
    Function* function = nullptr;
    const cudaError_t found = find(host, function);
    if (found != cudaSuccess) return returned(found);
    const Kernel& kernel = *function->kernel;
    *attributes = {};
    attributes->sharedSizeBytes = kernel.shared_bytes;
    attributes->numRegs = kernel.registers;
    uint32_t threads = kernel.max_threads;
    while (threads > 32 && registers_of_block(kernel.registers, threads) > kRegistersPerMultiprocessor) threads -= 32;
    attributes->maxThreadsPerBlock = static_cast<int>(threads);
    attributes->ptxVersion = function->module->choice.capability;
    attributes->binaryVersion =
        function->module->choice.compiled ? card().capability : function->module->choice.capability;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_limit(*function));
    attributes->preferredShmemCarveout = -1;
    return cudaSuccess;
}

// The limit on the static bytes plus these is what a block of the card can have.
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    const std::lock_guard lock(mutex());
    Function* function = nullptr;
    const cudaError_t found = find(host, function);
    if (found != cudaSuccess) return returned(found);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)  // only a hint
        return returned(value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
        report("cudaFuncSetAttribute: attribute %d is not supported", static_cast<int>(attribute));
        return returned(cudaErrorNotSupported);
    }
    const int64_t together = int64_t{value} + function->kernel->shared_bytes;
    if (value < 0 || together > card().shared_per_block) return returned(cudaErrorInvalidValue);
    function->dynamic_limits[current_device()] = static_cast<size_t>(value);
    return cudaSuccess;
}

}  // extern "C"
