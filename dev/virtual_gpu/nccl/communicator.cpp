// Communicators: creation, splitting, failures and their end (communicator.h).
#include "dev/virtual_gpu/nccl/communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu::nccl {
namespace {

std::mutex report_mutex;
std::string& reported() {
    static auto* const text = new std::string;
    return *text;
}

struct Registry {
    std::mutex mutex;
    std::vector<ncclComm*> all;
};
Registry& registry() {
    static auto* const one = new Registry;
    return *one;
}

void check_cuda(cudaError_t status, const char* call) {
    if (status != cudaSuccess) throw Error(ncclUnhandledCudaError, format("%s: %s", call, cudaGetErrorString(status)));
}

// An identity that tells this machine's cards apart.
std::string card_identity(int device) {
    char bus[64] = "";
    check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
    return bus;
}

}  // namespace

OnDevice::OnDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
}
OnDevice::~OnDevice() { cudaSetDevice(before_); }

void report(const std::string& text) {
    const std::lock_guard lock(report_mutex);
    reported() = text;
    virtual_gpu::report("NCCL: %s", text.c_str());
}

std::string last_report() {
    const std::lock_guard lock(report_mutex);
    return reported();
}

}  // namespace virtual_gpu::nccl

using namespace virtual_gpu;
using namespace virtual_gpu::nccl;

std::string ncclComm::name() const { return format("communicator %d (rank %d of %d)", id, rank, ranks); }

void ncclComm::fail(ncclResult_t code, const std::string& text) {
    const std::lock_guard lock(mutex_);  // locked, so that a thread that sees the code also finds the text
    if (failed_ != ncclSuccess) return;
    failed_ = code;
    report(name() + ": " + text);
}

void ncclComm::fail_all(ncclResult_t code, const std::string& text) {
    segment->fail(code, text);
    failure();
}

ncclResult_t ncclComm::failure() {
    std::string text;
    if (const ncclResult_t code = segment->failure(&text); code != ncclSuccess) fail(code, text);
    const std::lock_guard lock(mutex_);
    return failed_;
}

ncclComm& ncclComm::live(ncclComm_t comm) {
    if (!comm) throw Error(ncclInvalidArgument, "the communicator is NULL");
    const std::lock_guard lock(registry().mutex);
    if (std::find(registry().all.begin(), registry().all.end(), comm) == registry().all.end())
        throw Error(ncclInvalidArgument, format("%p is no communicator", static_cast<void*>(comm)));
    const Life life = comm->life;
    if (life == Life::destroyed || life == Life::aborted)
        throw Error(ncclInvalidArgument,
                    format("%s was %s", comm->name().c_str(), life == Life::destroyed ? "destroyed" : "aborted"));
    return *comm;
}

ncclComm* ncclComm::create(const ncclUniqueId& unique, int ranks, int rank) {
    if (ranks < 1 || ranks > kMostRanks)
        throw Error(ncclInvalidArgument, format("%d ranks: expected 1 to %d", ranks, kMostRanks));
    if (rank < 0 || rank >= ranks) throw Error(ncclInvalidArgument, format("rank %d of %d ranks", rank, ranks));
    auto comm = std::make_unique<ncclComm>();
    check_cuda(cudaGetDevice(&comm->device), "cudaGetDevice");
    comm->rank = rank;
    comm->ranks = ranks;
    comm->segment = std::make_shared<Segment>(unique, ranks, rank, card_identity(comm->device));
    const std::lock_guard lock(registry().mutex);
    registry().all.push_back(comm.get());
    comm->id = static_cast<int>(registry().all.size());
    return comm.release();
}

void ncclComm::join() {
    try {
        segment->await_all();
        life = Life::ready;
    } catch (const Error&) {
        life = Life::aborted;
        segment->leave();
        throw;
    }
}

ncclComm* ncclComm::split(int color, int key) {
    struct Wish {
        int color, key, rank;
        bool operator<(const Wish& other) const { return key != other.key ? key < other.key : rank < other.rank; }
    };
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) throw Error(ncclInvalidArgument, format("color %d", color));
    const Wish mine = {color, key, rank};
    std::vector<Wish> wishes(static_cast<size_t>(ranks));
    segment->exchange(wishes.data(), &mine, sizeof mine, "ncclCommSplit");
    std::erase_if(wishes, [&](const Wish& wish) { return wish.color != color; });
    std::sort(wishes.begin(), wishes.end());

    const int leader = wishes.front().rank;
    ncclUniqueId own = {};
    if (color != NCCL_SPLIT_NOCOLOR && leader == rank) own = Segment::create();
    std::vector<ncclUniqueId> ids(static_cast<size_t>(ranks));
    segment->exchange(ids.data(), &own, sizeof own, "ncclCommSplit");
    if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
    const auto place = std::find_if(wishes.begin(), wishes.end(), [&](const Wish& wish) { return wish.rank == rank; });
    const OnDevice on(device);
    ncclComm* const part = create(ids[static_cast<size_t>(leader)], static_cast<int>(wishes.size()),
                                  static_cast<int>(place - wishes.begin()));
    part->join();
    return part;
}

void ncclComm::end(Life how) {
    life = how;
    segment->leave();
}
