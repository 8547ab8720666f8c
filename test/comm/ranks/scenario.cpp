// A run in which one rank misbehaves at one step of a loop of collectives, for test/end_to_end/test_ranks.py:
//
//   test_ranks --scenario loop --operation all_gather --steps 100 --victim 1 --at 5 --action kill
//       --limit 2 --out DIR [--comm NAME] [--others ACTION] [--exit CODE] [--compute SECONDS]
//
// Actions: none, kill (SIGKILL), stop (SIGSTOP), sleep (forever), throw (an error of its own), mismatch (a different
// collective than the others), save (sleeps in the phase of saving). --limit is the watchdog's limit in seconds.
// build: threads
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <map>
#include <string>

#include "llmc/comm/watchdog.h"
#include "test/comm/ranks/ranks.h"

namespace llmc::test {
namespace {

class Arguments {
public:
    Arguments(int argc, char** argv) {
        for (int i = 1; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
    }
    std::string text(const std::string& name, const std::string& otherwise) const {
        const auto it = values_.find("--" + name);
        return it == values_.end() ? otherwise : it->second;
    }
    double number(const std::string& name, double otherwise) const {
        const std::string value = text(name, "");
        return value.empty() ? otherwise : std::stod(value);
    }

private:
    std::map<std::string, std::string> values_;
};

void misbehave(const std::string& action, const Comm& comm, Watchdog& watchdog) {
    if (action == "kill") raise(SIGKILL);
    if (action == "stop") raise(SIGSTOP);
    if (action == "throw") throw Error(ExitCode::bad_data, "this rank found bad data");
    if (action == "save") watchdog.begin(Watchdog::Phase::save);
    if (action == "sleep" || action == "save")
        while (true) sleep(1);
    if (action == "mismatch") {
        int64_t value = 0;
        comm.host_broadcast(&value, sizeof value, comm.world() - 1);
    }
}

// Zeros in device memory (the arrays of kernel_test.h need a running test).
class Zeros {
public:
    explicit Zeros(size_t bytes) : data_(device_malloc(bytes)) {
        set_bytes(data_, 0, bytes, test_stream());
        synchronize(test_stream());
    }
    ~Zeros() { device_free(data_); }
    Zeros(const Zeros&) = delete;
    Zeros& operator=(const Zeros&) = delete;
    float* get() { return static_cast<float*>(data_); }

private:
    void* data_;
};

// Computes for this much processor time; none passes while the process is stopped.
void compute(double seconds) {
    const clock_t until = clock() + static_cast<clock_t>(seconds * CLOCKS_PER_SEC);
    while (clock() < until) {
    }
}

class Collectives {
public:
    Collectives(const Comm& comm, std::string name)
        : comm_(comm),
          name_(std::move(name)),
          small_(kBytes),
          large_(kBytes * as_size(comm.world())),
          other_(kBytes * as_size(comm.world())),
          workspace_(std::max(comm.reduce_scatter_workspace(kCount, Wire::fp32, false),
                              comm.all_reduce_workspace<float>(kCount))) {}

    void run() {
        stream_t stream = test_stream();
        if (name_ == "all_gather") comm_.all_gather(large_.get(), small_.get(), kBytes, stream);
        if (name_ == "all_to_all") comm_.all_to_all(large_.get(), other_.get(), kBytes, stream);
        const std::vector<size_t> sizes(static_cast<size_t>(comm_.world()), kBytes);
        if (name_ == "all_to_all_v") comm_.all_to_all_v(large_.get(), sizes, other_.get(), sizes, stream);
        if (name_ == "reduce_scatter")
            comm_.reduce_scatter(small_.get(), large_.get(), kCount, Wire::fp32, false, workspace_.get(), stream);
        if (name_ == "all_reduce")
            comm_.all_reduce<float>(small_.get(), kCount, ReduceOp::max, workspace_.get(), stream);
        if (name_ == "broadcast") comm_.broadcast(small_.get(), kBytes, 0, stream);
        if (name_ == "barrier") comm_.barrier();
        if (name_ == "host_max") comm_.host_max(1);
        if (name_ == "split") comm_.neighbours(1, "neighbours");
        synchronize(stream);
    }

private:
    static constexpr size_t kCount = 20'000;  // more than an eager message, so both sides must take part
    static constexpr size_t kBytes = kCount * sizeof(float);
    const Comm& comm_;
    std::string name_;
    Zeros small_, large_, other_, workspace_;
};

}  // namespace

int run_scenario(int argc, char** argv) {
    const Arguments arguments(argc, argv);
    const LaunchInfo launch = launch_environment();
    const double limit = arguments.number(fmt::format("limit{}", launch.rank),
                                          arguments.number("limit", 2));  // for this rank, or for all
    Watchdog watchdog({arguments.number("timeout", 10), limit, limit}, launch.rank);
    ConnectOptions options;
    options.backend = value_of_word<CommKind>(arguments.text("comm", "auto")).value();
    options.timeout = arguments.number("timeout", 10);
    const Comm comm = connect(options, launch);
    watchdog.watch(comm, arguments.text("out", ""));
    open_device(device_of_rank(comm, device_count()));
    comm.attach_device();
    Collectives collectives(comm, arguments.text("operation", "all_gather"));
    const bool victim = comm.rank() == static_cast<int>(arguments.number("victim", -1));
    const int64_t steps = static_cast<int64_t>(arguments.number("steps", 10));
    const int64_t at = static_cast<int64_t>(arguments.number("at", 5));
    try {
        for (int64_t step = 1; step <= steps; step++) {
            watchdog.begin_step(step);
            if (!victim && step == at) misbehave(arguments.text("others", "none"), comm, watchdog);
            if (victim && step == at) misbehave(arguments.text("action", "none"), comm, watchdog);
            collectives.run();
            compute(arguments.number("compute", 0));
        }
    } catch (const Error& error) {
        watchdog.report_loss(error);
        throw;
    }
    watchdog.stop();
    comm.finish();
    if (comm.is_main()) std::printf("%d ranks finished over %s\n", comm.world(), comm.name());
    return static_cast<int>(arguments.number("exit", 0));
}

}  // namespace llmc::test
