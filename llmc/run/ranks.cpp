// Connects the ranks of a run, and opens this rank's device.
// build: per device
#include "llmc/run/ranks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/comm/agreement.h"
#include "llmc/data/tokenizer.h"  // sanitize
#include "llmc/log/provenance.h"
#include "llmc/plan/plan.h"

namespace llmc {

// Variables that the program reads. A misspelled LLMC_SECRET would protect nothing.
static const std::vector<std::string> kVariables = words_in(
    "LLMC_SECRET LLMC_SYNC LLMC_SEED LLMC_POISON LLMC_STREAMS LLMC_GUARD LLMC_SHARED_KB LLMC_MEMORY_MB LLMC_FAULT "
    "LLMC_FLIP LLMC_DELAY");

Comm planned_ranks(const Options& o, int world) {
    const bool over_mpi = o.comm == CommKind::mpi || o.comm == CommKind::tcp;
    return Comm::planned(world, over_mpi ? "mpi" : "nccl", o.reduce_order);
}

Ranks::Ranks(const Options& o, const LaunchInfo& launch)
    : watchdog({o.timeout_start, o.timeout_step, o.timeout_save}, launch.rank) {}

void Ranks::connect(const Options& o, const LaunchInfo& launch) {
    ConnectOptions options;
    options.backend = o.comm;
    options.order = o.reduce_order;
    options.timeout = o.timeout_start;
    comm = llmc::connect(options, launch);
    if (launch.alone() && launch.tasks > 1)
        print_line("note: one process runs, and the Slurm job has {} tasks; srun starts all of them", launch.tasks);
    if (comm.world() == 1 && !launch.lone_rank.empty())
        print_line("note: one process runs; the environment has {}=0 but no number of ranks", launch.lone_rank);
    if (comm.is_main())
        for (char** entry = environ; *entry; entry++)
            if (const std::string name = split(*entry, '=')[0];
                name.starts_with("LLMC_") && !contains(kVariables, name))
                print_line("note: nothing reads {} in the environment; there are {}", sanitize(name),
                           joined(kVariables));
    watchdog.watch(comm, o.out);
    open_device(device_of_rank(comm, device_count()));
    comm.attach_device();
    device = device_info();
    const std::string mine = device.name + " " + json_text(versions_json()), first = broadcast_text(comm, mine);
    if (const int64_t odd = comm.host_max(mine == first ? 0 : comm.rank()); odd > 0 && odd == comm.rank())
        print_line(
            "note: rank {} has another device or other libraries than rank 0 and may round differently: {}, not {}",
            odd, mine, first);
}

void Ranks::finish() {
    watchdog.stop();
    comm.finish();
}

void Ranks::plan(const Options& o) {
    watchdog.stop();
    comm = planned_ranks(o, o.world);
    planned_ = true;
}

void Ranks::describe(ResolveInputs& surroundings) const {
    surroundings.ranks = comm.world();
    surroundings.host_device = LLMC_CUDA == 0;
    surroundings.bf16_supported = planned_ || device.is_host || device.compute_capability >= 80;
    surroundings.fp8_supported = planned_ || device.has_fp8;
    surroundings.device_name = device.name;
    if (planned_) return;
    surroundings.hopper = device.compute_capability == 90;
    surroundings.tensor_maps = device.is_host || has_tensor_maps();
    surroundings.fp8_emulated_because = [](Fp8Recipe recipe) { return Matmul::emulated_because(scaling_of(recipe)); };
}

size_t Ranks::libraries_to_come(const Options& o) const {
    if (device.is_host) return 0;
    const bool nccl = std::string(comm.name()) == "nccl";
    const int within = o.sharding.stage == 0 ? 0 : o.sharding.within;
    return memory_reserve(nccl ? std::max(0, nccl_communicators(comm.world(), within) - 1) : 0);
}

}  // namespace llmc
