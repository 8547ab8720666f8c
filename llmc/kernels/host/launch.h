// Lets a launcher offer a plain CPU loop for the work of a kernel: launch_or_loop<kernel, loop>(config, ...).
//
// A loop does the work of a whole grid on the host device. It takes the shape of the grid and then the kernel's own
// parameters, so one launch declares the accesses and passes the arguments of both. A loop must write the same bits as
// its kernel, for any number of OpenMP threads.
//
// On the host device a program has the loop alone, because kernels take long to compile. Tests are compiled with
// LLMC_WITH_KERNELS and run the kernel, or with LLMC_LOOPS=compare both, which fails if they write different bytes.
#pragma once
#include <type_traits>

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
// True if kernels run, or with LLMC_LOOPS=compare both; false if loops run alone. Tests set it.
inline bool& runs_kernels() {
    static bool runs = false;
    return runs;
}
bool compares_loops();  // throws if this program has no kernels to compare with
// Runs the kernel, restores what it has overwritten and runs the loop. Throws if they have written different bytes.
void run_both(const std::vector<Access>& accesses, const LaunchSite& site, const std::function<void()>& kernel,
              const std::function<void()>& loop);

template <auto kernel, auto loop, class... P>
void submit_loop(void (*)(P...), const LaunchConfig& c, std::initializer_list<Access> accesses,
                 std::type_identity_t<P>... arguments) {
    const LaunchSite site{kernel_name<kernel>(), c.file, c.line};
    const auto run_loop = [=, grid = Grid{c.grid, c.block}] { loop(grid, arguments...); };
    if (!compares_loops()) return submit(c.stream, accesses, site, run_loop);
#ifdef LLMC_WITH_KERNELS
    check_launch(c.grid, c.block, c.shared_bytes, site);
    submit(c.stream, accesses, site, [=, written = std::vector<Access>(accesses)] {
        const auto run_kernel = [=] {
            const auto call = [](void* tuple) { std::apply(kernel, *static_cast<std::tuple<P...>*>(tuple)); };
            std::tuple<P...> copied(arguments...);
            run_grid(c.grid, c.block, c.shared_bytes, call, &copied, site);
        };
        run_both(written, site, run_kernel, run_loop);
    });
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
#ifdef LLMC_WITH_KERNELS
    if (runs_kernels() && !compares_loops()) return launch<kernel>(config, accesses, arguments...);
#endif
    submit_loop<kernel, loop>(Kernel(), config, accesses, arguments...);
#endif
}

template <auto kernel, auto loop, class... A>
void launch_or_loop(const LaunchConfig& config, const A&... arguments) {
    launch_or_loop<kernel, loop>(config, {detail::access_of(arguments)...}, arguments...);
}

}  // namespace llmc::host
