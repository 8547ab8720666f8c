// A test binary that runs as several processes: mpirun -np 4 test_ranks, or with RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT set. Every rank runs every case with the same random numbers, and a failure on any rank fails all.
//
//   test_ranks [--comm NAME] [--order rank] [--largest-message BYTES] [--training] [--break-rank R] [doctest's flags]
//   test_ranks --scenario NAME ...     what test/end_to_end/test_ranks.py does to a run; scenario.cpp
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/comm/ranks/ranks.h"
#include "test/kernel_test.h"

namespace {

const char* value_of(int argc, char** argv, const char* flag) {
    for (int i = 1; i + 1 < argc; i++)
        if (std::strcmp(argv[i], flag) == 0) return argv[i + 1];
    return nullptr;
}

}  // namespace

namespace llmc::test {
namespace {
const Comm* the_world = nullptr;
}
const Comm& world() { return *the_world; }
}  // namespace llmc::test

int main(int argc, char** argv) {
    using namespace llmc;
    prepare_process(argv);
    LaunchInfo launch;
    try {
        launch = launch_environment();
        if (value_of(argc, argv, "--scenario")) return test::run_scenario(argc, argv);
        ConnectOptions options;
        options.timeout = 30;
        if (const char* name = value_of(argc, argv, "--comm")) options.backend = value_of_word<CommKind>(name).value();
        if (value_of(argc, argv, "--order")) options.order = ReduceOrder::rank;
        if (const char* bytes = value_of(argc, argv, "--largest-message"))
            options.largest_message = std::strtoull(bytes, nullptr, 10);
        Comm comm = connect(options, launch);
        test::test_device = device_of_rank(comm, device_count());
        open_device(test::test_device);
        comm.attach_device();
        test::the_world = &comm;

        doctest::Context context(argc, argv);
        // Whole training steps take longer than all collectives, so they run separately.
        bool training = false;
        for (int i = 1; i < argc; i++) training |= std::strcmp(argv[i], "--training") == 0;
        context.addFilter(training ? "test-suite" : "test-suite-exclude", "training*");
        context.setOption("no-colors", true);
        context.setOption("no-intro", true);
        if (!comm.is_main()) context.setOption("minimal", true);    // prints only failures
        const char* broken = value_of(argc, argv, "--break-rank");  // tests that one rank's failure fails all
        const int result = context.run();
        const int64_t failed = comm.host_max(result || (broken && std::atoi(broken) == comm.rank()));
        if (comm.is_main())
            std::printf("%s: %d ranks over %s\n", failed ? "FAILED" : "passed", comm.world(), comm.name());
        comm.finish();
        return failed ? 1 : 0;
    } catch (const Error& error) {
        leave(launch, error);
    }
}
