// The functions of nccl.h. Each checks its arguments, does one thing, and turns an Error into its code after printing
// it.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <string>

#include "dev/virtual_gpu/fault.h"
#include "dev/virtual_gpu/nccl/communicator.h"
#include "dev/virtual_gpu/nccl/group.h"
#include "dev/virtual_gpu/options.h"

using namespace virtual_gpu;
using namespace virtual_gpu::nccl;

namespace {

using Life = ncclComm::Life;

template <class Function>
ncclResult_t guarded(Function function) {
    try {
        function();
        return ncclSuccess;
    } catch (const Error& error) {
        report(error.what());
        return error.code;
    }
}

void require(const void* pointer, const char* name) {
    if (!pointer) throw Error(ncclInvalidArgument, std::string(name) + " is NULL");
}

ncclResult_t call_on(ncclComm_t comm, const Call& call) {
    return guarded([&] { enqueue(ncclComm::live(comm), call); });
}

// "Not initialized config will result in NCCL error" (nccl.h). Non-blocking communicators are supported because all
// calls are done when they return, which ncclSuccess says.
void check_config(const ncclConfig_t* config) {
    static const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (!config) return;
    if (config->magic != fresh.magic || config->size != fresh.size)
        throw Error(ncclInvalidArgument, "the configuration does not come from NCCL_CONFIG_INITIALIZER");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)
        throw Error(ncclInvalidArgument, format("blocking is %d", config->blocking));
}

// Waits until everything that was issued has run, except if an operation can never end.
void drain(ncclComm& comm) {
    if (comm.outstanding == 0 || comm.failure() != ncclSuccess) return;
    const OnDevice on(comm.device);
    const cudaError_t status = cudaDeviceSynchronize();
    if (status != cudaSuccess)
        throw Error(ncclUnhandledCudaError, comm.name() + ": cudaDeviceSynchronize: " + cudaGetErrorString(status));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    return guarded([&] {
        require(version, "version");
        *version = options().nccl_version;
    });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    return guarded([&] {
        require(id, "uniqueId");
        *id = Segment::create();
    });
}

const char* ncclGetErrorString(ncclResult_t code) {
    switch (code) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error";
        case ncclSystemError:
            return "unhandled system error";
        case ncclInternalError:
            return "internal error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        case ncclNumResults:
            break;
    }
    return "unknown result code";
}

// The last error of any communicator of the process: "the comm argument is currently unused".
const char* ncclGetLastError(ncclComm_t) {
    thread_local std::string text;
    text = last_report();
    return text.c_str();
}

// ---- communicators -------------------------------------------------------------------------------------------------

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    return guarded([&] {
        require(comm, "comm");
        check_config(config);
        *comm = ncclComm::create(id, ranks, rank);
        enqueue_join(**comm);
    });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
    return guarded([&] {
        ncclComm& whole = ncclComm::live(comm);
        require(part, "newcomm");
        check_config(config);
        if (in_group()) throw Error(ncclInvalidUsage, "the virtual GPU has no ncclCommSplit within a group");
        *part = whole.split(color, key);
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return guarded([&] {
        ncclComm& one = ncclComm::live(comm);
        if (in_group()) throw Error(ncclInvalidUsage, "ncclCommFinalize within a group");
        if (one.life == Life::finalized) throw Error(ncclInvalidArgument, one.name() + " is finalized already");
        drain(one);
        one.life = Life::finalized;
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    return guarded([&] {
        ncclComm& one = ncclComm::live(comm);
        if (in_group()) throw Error(ncclInvalidUsage, "ncclCommDestroy within a group");
        drain(one);
        one.end(Life::destroyed);
    });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm) return ncclSuccess;
    return guarded([&] { ncclComm::live(comm).end(Life::aborted); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* code) {
    return guarded([&] {
        require(code, "asyncError");
        *code = ncclComm::live(comm).failure();
    });
}

// ---- groups and calls ----------------------------------------------------------------------------------------------

ncclResult_t ncclGroupStart() {
    group_start();
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    return guarded([] { group_end(); });
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return call_on(comm, {Kind::all_gather, send, recv, count, type, ncclSum, 0, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return call_on(comm, {Kind::reduce_scatter, send, recv, count, type, op, 0, stream});
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return call_on(comm, {Kind::all_reduce, send, recv, count, type, op, 0, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return call_on(comm, {Kind::broadcast, send, recv, count, type, ncclSum, root, stream});
}
ncclResult_t ncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return call_on(comm, {Kind::all_to_all, send, recv, count, type, ncclSum, 0, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return call_on(comm, {Kind::send, send, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call_on(comm, {Kind::recv, nullptr, recv, count, type, ncclSum, peer, stream});
}
}
