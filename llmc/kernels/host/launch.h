// Lets a launcher offer a plain CPU loop for the work of a kernel: launch_or_loop<kernel, loop>(config, ...).
//
// A loop does the work of a whole grid on the host device. It takes the shape of the grid and then the kernel's own
// parameters, so one launch declares the accesses and passes the arguments of both. A loop must write the same bits as
// its kernel, for any number of OpenMP threads.
//
// The CPU program has the loop alone. test_cpu compiles launchers with LLMC_WITH_KERNELS, so it has both, and chooses.
#pragma once
#include <functional>
#include <type_traits>
#include <vector>

#include "llmc/device/launch.cuh"

namespace llmc::host {

struct Grid {
    dim3 grid, block;
};

template <class Kernel>
struct LoopOf;
template <class... P>
struct LoopOf<void (*)(P...)> {
    using Type = void (*)(const Grid&, P...);
};

#if !LLMC_ON_GPU
#ifdef LLMC_WITH_KERNELS
// Returns which of the two runs, or the comparison of both. Test programs define it.
std::function<void()> kernel_or_loop(const std::vector<Access>& accesses, const LaunchSite& site,
                                     std::function<void()> kernel, std::function<void()> loop);
#endif

template <auto kernel, auto loop, class... P>
void submit_loop(void (*)(P...), const LaunchConfig& c, std::initializer_list<Access> accesses,
                 std::type_identity_t<P>... arguments) {
    const LaunchSite site{kernel_name<kernel>(), c.file, c.line};
    const auto run_loop = [=, grid = Grid{c.grid, c.block}] { loop(grid, arguments...); };
#ifdef LLMC_WITH_KERNELS
    using Launcher = llmc::detail::Launcher<kernel, void (*)(P...)>;
    const std::function<void()> run_kernel = Launcher::work(c, accesses, site, arguments...);
    submit(c.stream, accesses, site, kernel_or_loop(accesses, site, run_kernel, run_loop));
#else
    submit(c.stream, accesses, site, run_loop);
#endif
}
#endif

// For launches that list their accesses separately.
template <auto kernel, auto loop, class... A>
void launch_or_loop(const LaunchConfig& config, std::initializer_list<Access> accesses, const A&... arguments) {
    using Kernel = decltype(kernel);
    static_assert(std::is_same_v<decltype(loop), typename LoopOf<Kernel>::Type>);
#if LLMC_ON_GPU
    launch<kernel>(config, accesses, arguments...);
#else
    submit_loop<kernel, loop>(Kernel(), config, accesses, arguments...);
#endif
}

template <auto kernel, auto loop, class... A>
void launch_or_loop(const LaunchConfig& config, const A&... arguments) {
    launch_or_loop<kernel, loop>(config, {detail::access_of(arguments)...}, arguments...);
}

}  // namespace llmc::host
