// Reads the launchers' environment variables and chooses the transport.
#include "llmc/comm/launch.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>

namespace llmc {
namespace {

class Environment {
public:
    explicit Environment(const std::function<const char*(const char*)>& get) : get_(get) {}

    std::string text(const char* name) const {
        const char* value = get_(name);
        return value ? value : "";
    }
    bool has(const char* name) const { return !text(name).empty(); }
    std::optional<int> number(const char* name) const {
        const std::string value = text(name);
        if (value.empty()) return {};
        char* end = nullptr;
        const long n = std::strtol(value.c_str(), &end, 10);
        if (*end || n < 0 || n > 1'000'000)
            refuse("{}={} in the environment is not a whole number from 0 on", name, value);
        return static_cast<int>(n);
    }

private:
    const std::function<const char*(const char*)>& get_;
};

void set_ranks(LaunchInfo& info, const char* launcher, int rank, int world) {
    if (world > 0 && rank >= world) refuse("the environment says rank {} of {} ranks ({})", rank, world, launcher);
    info.launcher = launcher;
    info.rank = rank;
    info.world = world;
}

void read_master(LaunchInfo& info, const Environment& e) {
    info.address = e.text("MASTER_ADDR");
    info.port = e.number("MASTER_PORT").value_or(info.port);
    // torchrun's own store listens at MASTER_PORT, so the ranks use the port after it.
    const bool next = e.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    const int last = next ? 65534 : 65535;
    if (info.port < 1 || info.port > last)
        refuse("MASTER_PORT={} is not a port (1 to {}{})", info.port, last,
               next ? "; torchrun listens there, and the ranks use the port after it" : "");
    if (next) info.port++;
}

// Reads RANK and WORLD_SIZE, if they are set.
void read_rank(LaunchInfo& info, const Environment& e) {
    const std::optional<int> rank = e.number("RANK"), world = e.number("WORLD_SIZE");
    if (!rank && world.value_or(1) <= 1) return;
    if (!rank || !world) {
        if (rank == 0) {
            info.lone_rank = "RANK";
            return;
        }
        refuse("the environment has {} but no {}; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of them",
               rank ? "RANK" : "WORLD_SIZE", rank ? "WORLD_SIZE" : "RANK");
    }
    set_ranks(info, "environment", *rank, *world);
}

// True if an srun step started this process. The job's own variables are also set in batch scripts.
bool in_srun_step(const Environment& e) {
    return e.has("SLURM_PROCID") && (e.has("SLURM_STEP_NUM_TASKS") || e.has("SLURM_STEP_ID") || e.has("SLURM_STEPID") ||
                                     e.number("SLURM_PROCID").value_or(0) > 0);
}

// A job id keeps runs apart that meet at the same port by accident. On a shared cluster it is no secret, because
// everybody can list it; LLMC_SECRET is one.
std::string read_secret(const std::string& launcher, const Environment& e) {
    if (e.has("LLMC_SECRET")) return e.text("LLMC_SECRET");
    if (e.has("TORCHELASTIC_RUN_ID") && e.text("TORCHELASTIC_RUN_ID") != "none")
        return "torchrun " + e.text("TORCHELASTIC_RUN_ID");
    if (launcher == "mpirun")
        for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"})
            if (e.has(name)) return "mpirun " + e.text(name);
    // Only srun's own tasks all belong to one step: other launchers may use a step for each machine.
    const std::string step = e.has("SLURM_STEP_ID") ? e.text("SLURM_STEP_ID") : e.text("SLURM_STEPID");
    if (e.has("SLURM_JOB_ID")) return "slurm " + e.text("SLURM_JOB_ID") + (launcher == "srun" ? "." + step : "");
    return {};
}

}  // namespace

std::string host_name() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

LaunchInfo launch_environment(const std::function<const char*(const char*)>& get) {
    const Environment e(get);
    LaunchInfo info;
    read_master(info, e);
    if (const auto world = e.number("OMPI_COMM_WORLD_SIZE")) {
        set_ranks(info, "mpirun", e.number("OMPI_COMM_WORLD_RANK").value_or(0), *world);
        info.mpi = true;
    } else if (e.has("RANK") && e.has("WORLD_SIZE") && e.has("MASTER_ADDR")) {
        read_rank(info, e);
    } else if (in_srun_step(e)) {
        const int world = e.number("SLURM_STEP_NUM_TASKS").value_or(e.number("SLURM_NTASKS").value_or(1));
        set_ranks(info, "srun", e.number("SLURM_PROCID").value_or(0), world);
        info.mpi = true;  // only works if Slurm and MPI share a PMI; connect() finds out
    } else if (const auto pmi_world = e.number("PMI_SIZE")) {
        set_ranks(info, "mpirun", e.number("PMI_RANK").value_or(0), *pmi_world);
        info.mpi = true;
    } else if (const auto rank = e.number("PMIX_RANK")) {
        set_ranks(info, "mpirun", *rank, 0);
        info.mpi = true;
        info.lone_rank = "PMIX_RANK";
    } else {
        read_rank(info, e);
        for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
            if (!info.alone() || !e.has(name)) continue;
            if (e.number(name) > 0)
                refuse("the environment has {}={} but no number of ranks; start the ranks with mpirun, or unset it",
                       name, e.text(name));
            info.lone_rank = name;
        }
    }
    info.secret = read_secret(info.launcher, e);
    info.tasks = e.number("SLURM_NTASKS").value_or(1);
    return info;
}

LaunchInfo launch_environment() {
    return launch_environment([](const char* name) { return std::getenv(name); });
}

constexpr const char* kGetMpi = "install Open MPI or MPICH (mpicxx) and build with USE_MPI=1";
constexpr const char* kGetNccl = "install its headers (scripts/setup.sh does) and build train_gpt with USE_NCCL=1";

// How the ranks of a world larger than one find each other.
static CommChoice::Transport choose_transport(const LaunchInfo& launch, const BuildFeatures& build) {
    using Transport = CommChoice::Transport;
    // srun's tasks can meet over MPI or over TCP. An explicit address chooses TCP.
    const bool prefers_tcp = launch.launcher == "srun" && !launch.address.empty();
    if (launch.mpi && build.mpi && !prefers_tcp) return Transport::mpi;
    if (!launch.address.empty() && launch.world > 0) return Transport::tcp;
    if (launch.mpi)
        refuse(
            "started by {}, but this build has no MPI: {}, or set MASTER_ADDR and MASTER_PORT for ranks that "
            "meet over TCP",
            launch.launcher, kGetMpi);
    refuse(
        "RANK={} and WORLD_SIZE={} are set but MASTER_ADDR is not: set it to a name or address of rank 0's "
        "machine, or start the ranks with mpirun",
        launch.rank, launch.world);
}

CommChoice choose_comm(CommKind requested, const LaunchInfo& launch, const BuildFeatures& build) {
    using Transport = CommChoice::Transport;
    CommChoice choice;
    if (requested == CommKind::mpi && !build.mpi) refuse("--comm mpi: this build has no MPI; {}", kGetMpi);
    if (requested == CommKind::nccl && !build.cuda)
        refuse("--comm nccl: NCCL connects GPUs, and this build runs on the CPU; use --comm auto, or build train_gpt");
    if (requested == CommKind::nccl && !build.nccl) refuse("--comm nccl: this build has no NCCL; {}", kGetNccl);

    if (requested == CommKind::self) {
        if (launch.world == 0)
            refuse(
                "--comm self: PMIX_RANK={} is in the environment, and each rank would train alone; unset it for one "
                "process, or use --comm auto",
                launch.rank);
        if (launch.world > 1)
            refuse(
                "--comm self: {} started {} ranks, and each would train alone; start one process, or use --comm auto",
                launch.launcher, launch.world);
        return choice;
    }
    if (launch.world == 1) {
        // One rank needs nothing else. In a shell that mpirun or srun started, MPI may start once, or not at all.
        if (requested == CommKind::mpi) choice.transport = Transport::mpi;
        return choice;
    }
    choice.transport = choose_transport(launch, build);
    if (requested == CommKind::mpi && choice.transport != Transport::mpi)
        refuse(
            "--comm mpi: the ranks were not started by mpirun, so MPI knows nothing of them; start them with mpirun, "
            "for example mpirun -np 8 train_gpt ...");
    if (requested == CommKind::tcp) {
        if (launch.address.empty() || launch.world == 0)
            refuse("--comm tcp: the environment has to have RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
        choice.transport = Transport::tcp;
    }
    const bool device_collectives_by_nccl =
        requested == CommKind::nccl || (requested == CommKind::automatic && build.cuda);
    if (device_collectives_by_nccl && launch.world != 1) {
        if (!build.nccl)
            refuse(
                "GPUs of several ranks need NCCL, and this build has none; {}. --comm mpi works without, slowly, "
                "through host memory",
                kGetNccl);
        choice.nccl = true;
    }
    return choice;
}

void set_environment(const CommChoice& choice) {
    if (!choice.nccl) return;
    // Several streams carry collectives, so NCCL must start them in the order of the calls.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    // CUDA would load a kernel at its first launch, which may wait for the device while a collective on another stream
    // waits for a rank that does the same (CUDA Programming Guide, Lazy Loading, Potential Hazards).
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace llmc
