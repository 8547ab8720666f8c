// launch<kernel>({grid, block, shared bytes, stream}, in(x, n), out(y, n), N, ...) starts a kernel.
//
// Every tensor argument says what the kernel does to it. CUDA ignores that, but the compiler refuses in(x, n) where the
// kernel could write. The host device refuses undeclared pointers and counts the bytes for the traffic tests. With
// LLMC_GUARD=1 it also opens only the declared device memory while the kernel runs. The tensors may instead come in a
// list before the other arguments, {in(x, n), out(y, n)}; then those may be plain pointers into the tensors.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "llmc/device/keywords.cuh"
#include "llmc/device/runtime.h"
#if LLMC_ON_GPU
#include "llmc/device/cuda_calls.h"
#else
#include "llmc/device/host/builtins.h"
#include "llmc/device/host/runtime.h"
#endif

// Shared memory. LLMC_SHARED(float, tile, [32][33]); declares the static array `tile`. LLMC_DYNAMIC_SHARED(bf16,
// memory); gives the launch's dynamic bytes a name and type, aligned to 128 bytes.
#if LLMC_ON_GPU
#define LLMC_SHARED(T, name, ...) __shared__ __align__(16) T name __VA_ARGS__
#define LLMC_DYNAMIC_SHARED(T, name)                                      \
    extern __shared__ __align__(128) unsigned char llmc_dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(llmc_dynamic_shared)
#else
#define LLMC_SHARED(T, name, ...)                             \
    static thread_local ::llmc::host::SharedSite name##_site; \
    using name##_type = T __VA_ARGS__;                        \
    name##_type& name = *reinterpret_cast<name##_type*>(::llmc::host::static_shared(name##_site, sizeof(name##_type)))
#define LLMC_DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(::llmc::host::dynamic_shared(__FILE__, __LINE__))
#endif

namespace llmc {

// Threads of a block, and elements of a thread, of kernels that have no reason for other numbers.
constexpr int kBlockThreads = 256, kBlockWarps = kBlockThreads / 32, kPerThread = 8;

// Blocks of kBlockThreads that fill a multiprocessor: 1536 threads with 8.9 and 12.0, 2048 with 8.0, 9.0 and 10.0.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kMostBlocks = 1536 / kBlockThreads;
#else
constexpr int kMostBlocks = 2048 / kBlockThreads;
#endif

struct LaunchConfig {
    dim3 grid, block;
    size_t shared_bytes;
    stream_t stream;
    const char* file;
    int line;
    LaunchConfig(dim3 grid_, dim3 block_, size_t shared_bytes_, stream_t stream_, const char* file_ = __builtin_FILE(),
                 int line_ = __builtin_LINE())
        : grid(grid_), block(block_), shared_bytes(shared_bytes_), stream(stream_), file(file_), line(line_) {}
};

// The name of a kernel given as template argument, for example "llmc::fill_kernel<float>".
template <auto kernel>
const char* kernel_name() {
    static const std::string name = [](const std::string& text) {  // "... [with auto kernel = NAME]", "[kernel = NAME]"
        const size_t begin = text.find("kernel = ");
        if (begin == std::string::npos) return text;
        const size_t end = text.find_first_of(";]", begin);
        return text.substr(begin + 9, end - begin - 9);
    }(__PRETTY_FUNCTION__);
    return name.c_str();
}

namespace detail {

template <auto kernel, class Pointer>
struct Launcher;

template <auto kernel, class... P>
struct Launcher<kernel, void (*)(P...)> {
#if LLMC_ON_GPU
    static void run(const LaunchConfig& config, std::initializer_list<Access>, P... arguments) {
        const LaunchSite site{kernel_name<kernel>(), config.file, config.line};
        if (config.shared_bytes > 0)
            provide_shared_memory(reinterpret_cast<const void*>(kernel), config.shared_bytes, site);
        cudaLaunchConfig_t launch = {};
        launch.gridDim = config.grid;
        launch.blockDim = config.block;
        launch.dynamicSmemBytes = config.shared_bytes;
        launch.stream = config.stream;
        check_cuda(cudaLaunchKernelEx(&launch, kernel, arguments...), site.kernel, site.file, site.line);
        after_work(config.stream, site);
    }
#else
    static void run(const LaunchConfig& c, std::initializer_list<Access> accesses, P... arguments) {
        const LaunchSite site{kernel_name<kernel>(), c.file, c.line};
        host::submit(c.stream, accesses, site, work(c, accesses, site, arguments...));
    }
    // Checks a launch, and returns what it does.
    static std::function<void()> work(const LaunchConfig& c, std::initializer_list<Access> accesses,
                                      const LaunchSite& site, P... arguments) {
        host::check_launch(c.grid, c.block, c.shared_bytes, site);
        (check_argument(arguments, accesses, site), ...);
        std::tuple<P...> copied(arguments...);  // copied at the launch, as on a GPU
        return [copied, c, site]() mutable {
            host::run_grid(c.grid, c.block, c.shared_bytes, &Launcher::call, &copied, site);
        };
    }

private:
    static void call(void* arguments) { std::apply(kernel, *static_cast<std::tuple<P...>*>(arguments)); }

    template <class T>
    static void check_argument(const T& value, std::initializer_list<Access> accesses, const LaunchSite& site) {
        if constexpr (std::is_pointer_v<T>) host::check_pointer(value, accesses, site);
    }
#endif
};

// The access that an argument declares. Empty unless the argument is a Tensor.
template <class T>
Access access_of(const T&) {
    return {};
}
template <class T>
Access access_of(const Tensor<T>& tensor) {
    return tensor;
}

}  // namespace detail

template <auto kernel, class... A>
void launch(const LaunchConfig& config, const A&... arguments) {
    detail::Launcher<kernel, decltype(kernel)>::run(config, {detail::access_of(arguments)...}, arguments...);
}

template <auto kernel, class... A>
void launch(const LaunchConfig& config, std::initializer_list<Access> accesses, A&&... arguments) {
    detail::Launcher<kernel, decltype(kernel)>::run(config, accesses, std::forward<A>(arguments)...);
}

}  // namespace llmc
