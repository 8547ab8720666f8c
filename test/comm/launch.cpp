// How a launcher's environment is read, and which back-end follows from it.
#include "llmc/comm/launch.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>

#include "llmc/base/error.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using Variables = std::map<std::string, std::string>;

LaunchInfo launched(const Variables& variables) {
    return launch_environment([&](const char* name) {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
    });
}

std::string refusal_of(const Variables& variables) {
    return error_of([&] { launched(variables); }, ExitCode::bad_flags);
}

constexpr BuildFeatures kCpu = {false, true, false}, kCpuAlone = {false, false, false}, kGpu = {true, true, true},
                        kGpuWithoutMpi = {true, false, true}, kGpuWithoutNccl = {true, true, false};

std::string refusal_of(CommKind requested, const LaunchInfo& launch, const BuildFeatures& build) {
    return error_of([&] { choose_comm(requested, launch, build); }, ExitCode::bad_flags);
}

const Variables kMpirun = {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "2"}};
const Variables kTorchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1234"}};
const Variables kSrun = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}};

Variables with(Variables variables, const Variables& more) {
    for (const auto& [name, value] : more) variables[name] = value;
    return variables;
}

using ChosenTransport = CommChoice::Transport;

}  // namespace

TEST_CASE("launch: nothing in the environment is one process") {
    const LaunchInfo info = launched({});
    CHECK(info.alone());
    CHECK(info.world == 1);
    CHECK(info.rank == 0);
    CHECK(launched({{"WORLD_SIZE", "1"}}).alone());
    CHECK(launched({{"RANK", "0"}}).alone());
    CHECK(launched({{"MASTER_ADDR", "somewhere"}}).alone());
}

TEST_CASE("launch: mpirun, of Open MPI and of others") {
    const LaunchInfo info = launched(kMpirun);
    CHECK(info.launcher == "mpirun");
    CHECK(info.mpi);
    CHECK(info.rank == 2);
    CHECK(info.world == 4);
    const LaunchInfo hydra = launched({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
    CHECK(hydra.launcher == "mpirun");
    CHECK(hydra.rank == 1);
    CHECK(hydra.world == 3);
    const LaunchInfo pmix = launched({{"PMIX_RANK", "6"}});
    CHECK(pmix.rank == 6);
    CHECK(pmix.world == 0);  // MPI will say
    // mpirun inside a Slurm job.
    CHECK(launched(with(kMpirun, {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}})).world == 4);
}

TEST_CASE("launch: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT") {
    const LaunchInfo info = launched(kTorchrun);
    CHECK(info.launcher == "environment");
    CHECK_FALSE(info.mpi);
    CHECK(info.rank == 3);
    CHECK(info.world == 8);
    CHECK(info.address == "node0");
    CHECK(info.port == 1234);
    CHECK(launched(with(kTorchrun, kSrun)).rank == 3);  // a launcher inside srun takes precedence over srun
    Variables without_port = kTorchrun;
    without_port.erase("MASTER_PORT");
    CHECK(launched(without_port).port == 29500);
    CHECK(launched(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).port == 1235);
}

TEST_CASE("launch: srun") {
    const LaunchInfo info = launched(kSrun);
    CHECK(info.launcher == "srun");
    CHECK(info.rank == 5);
    CHECK(info.world == 8);
    CHECK(launched(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "6"}})).world == 6);
    // A batch script runs one process, whatever the job may start later.
    CHECK(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).alone());
    CHECK(launched({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}}).world == 8);
}

TEST_CASE("launch: the secret is LLMC_SECRET, or else the launcher's job id") {
    CHECK(launched(kTorchrun).secret == "");
    CHECK(launched(with(kTorchrun, {{"LLMC_SECRET", "x"}, {"SLURM_JOB_ID", "7"}})).secret == "x");
    CHECK(launched(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}})).secret == "");
    CHECK(launched(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "r1"}, {"SLURM_JOB_ID", "7"}})).secret == "torchrun r1");
    const Variables job = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}};
    CHECK(launched(with(kSrun, {{"SLURM_JOB_ID", "7"}})).secret == "slurm 7.0");
    // A script may start each machine's ranks as a separate step.
    CHECK(launched(with(kTorchrun, job)).secret == "slurm 7");
    CHECK(launched(with(kMpirun, {{"PMIX_NAMESPACE", "42"}, {"SLURM_JOB_ID", "7"}})).secret == "mpirun 42");
    CHECK(launched(with(kTorchrun, {{"PMIX_NAMESPACE", "42"}})).secret == "");
}

TEST_CASE("launch: contradictions are refused") {
    CHECK(contains(refusal_of({{"RANK", "1"}}), "RANK but no WORLD_SIZE"));
    CHECK(launched({{"RANK", "0"}}).lone_rank == "RANK");
    CHECK(launched(kTorchrun).lone_rank == "");
    CHECK(contains(refusal_of({{"WORLD_SIZE", "4"}}), "WORLD_SIZE but no RANK"));
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
        CHECK(contains(refusal_of({{name, "1"}}), std::string(name) + "=1 but no number of ranks"));
        CHECK(launched({{name, "0"}}).alone());
        CHECK(launched({{name, "0"}}).lone_rank == name);
        CHECK(launched(with(kTorchrun, {{name, "1"}})).rank == 3);
    }
    CHECK(contains(refusal_of(with(kTorchrun, {{"RANK", "8"}})), "rank 8 of 8 ranks"));
    CHECK(contains(refusal_of(with(kTorchrun, {{"RANK", "two"}})), "RANK=two"));
    CHECK(contains(refusal_of(with(kTorchrun, {{"RANK", "-1"}})), "RANK=-1"));
    CHECK(contains(refusal_of(with(kTorchrun, {{"MASTER_PORT", "70000"}})), "MASTER_PORT=70000"));
    CHECK(launched(with(kTorchrun, {{"MASTER_PORT", "65535"}})).port == 65535);
    CHECK(refusal_of(with(kTorchrun, {{"MASTER_PORT", "65535"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}})) ==
          "MASTER_PORT=65535 is not a port (1 to 65534; torchrun listens there, and the ranks use the port after it)");
    CHECK(contains(refusal_of({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "4"}}), "rank 4 of 4 ranks"));
}

TEST_CASE("launch: the back-end that each launcher and build leads to") {
    CHECK(choose_comm(CommKind::automatic, {}, kCpu).transport == ChosenTransport::self);
    CHECK(choose_comm(CommKind::automatic, {}, kGpu).nccl == false);
    CHECK(choose_comm(CommKind::mpi, {}, kCpu).transport == ChosenTransport::mpi);
    CHECK(choose_comm(CommKind::nccl, {}, kGpu).transport == ChosenTransport::self);
    for (const Variables& one :
         {Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Variables{{"OMPI_COMM_WORLD_SIZE", "1"}},
          with(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})})
        CHECK(choose_comm(CommKind::automatic, launched(one), kCpu).transport == ChosenTransport::self);

    CHECK(choose_comm(CommKind::automatic, launched(kMpirun), kCpu).transport == ChosenTransport::mpi);
    CHECK_FALSE(choose_comm(CommKind::automatic, launched(kMpirun), kCpu).nccl);
    CHECK(choose_comm(CommKind::automatic, launched(kMpirun), kGpu).nccl);
    CHECK(choose_comm(CommKind::automatic, launched(kMpirun), kGpu).transport == ChosenTransport::mpi);
    CHECK_FALSE(choose_comm(CommKind::mpi, launched(kMpirun), kGpu).nccl);
    CHECK(choose_comm(CommKind::automatic, launched({{"PMIX_RANK", "6"}}), kGpu).nccl);

    CHECK(choose_comm(CommKind::automatic, launched(kTorchrun), kCpu).transport == ChosenTransport::tcp);
    CHECK(choose_comm(CommKind::tcp, launched(kTorchrun), kCpuAlone).transport == ChosenTransport::tcp);
    CHECK(choose_comm(CommKind::automatic, launched(kTorchrun), kGpuWithoutMpi).nccl);
    CHECK(choose_comm(CommKind::nccl, launched(kTorchrun), kGpuWithoutMpi).transport == ChosenTransport::tcp);
    CHECK(choose_comm(CommKind::automatic, launched(kSrun), kGpu).transport == ChosenTransport::mpi);
    CHECK(choose_comm(CommKind::automatic, launched(with(kSrun, {{"MASTER_ADDR", "n"}})), kGpu).transport ==
          ChosenTransport::tcp);
    CHECK(choose_comm(CommKind::automatic, launched(with(kMpirun, {{"MASTER_ADDR", "n"}})), kGpuWithoutMpi).transport ==
          ChosenTransport::tcp);
}

TEST_CASE("launch: impossible requests are refused with advice") {
    CHECK(contains(refusal_of(CommKind::mpi, {}, kCpuAlone), "USE_MPI=1"));
    CHECK(contains(refusal_of(CommKind::nccl, {}, kCpu), "this build runs on the CPU"));
    CHECK(contains(refusal_of(CommKind::nccl, {}, kGpuWithoutNccl), "USE_NCCL=1"));
    CHECK(contains(refusal_of(CommKind::self, launched(kMpirun), kCpu), "started 4 ranks, and each would train alone"));
    CHECK(contains(refusal_of(CommKind::self, launched({{"PMIX_RANK", "2"}}), kCpu),
                   "PMIX_RANK=2 is in the environment, and each rank would train alone"));
    CHECK(contains(refusal_of(CommKind::automatic, launched(kMpirun), kCpuAlone), "this build has no MPI"));
    CHECK(contains(refusal_of(CommKind::automatic, launched(kMpirun), kGpuWithoutNccl),
                   "GPUs of several ranks need NCCL"));
    CHECK(contains(refusal_of(CommKind::mpi, launched(kTorchrun), kCpu), "mpirun -np"));
    CHECK(contains(refusal_of(CommKind::tcp, launched(kMpirun), kCpu), "MASTER_ADDR"));
    CHECK(contains(refusal_of(CommKind::automatic, launched({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), kCpu),
                   "MASTER_ADDR is not"));
}

TEST_CASE("launch: with NCCL, kernels are loaded before the first collective unless the user says otherwise") {
    const auto loading = [] {
        const char* const value = std::getenv("CUDA_MODULE_LOADING");
        return std::string(value ? value : "");
    };
    const std::string before = loading();
    unsetenv("CUDA_MODULE_LOADING");
    set_environment({CommChoice::Transport::mpi, false});
    CHECK(loading() == "");
    set_environment({CommChoice::Transport::mpi, true});
    CHECK(loading() == "EAGER");
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    set_environment({CommChoice::Transport::tcp, true});
    CHECK(loading() == "LAZY");
    unsetenv("CUDA_MODULE_LOADING");
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (!before.empty()) setenv("CUDA_MODULE_LOADING", before.c_str(), 1);
}
