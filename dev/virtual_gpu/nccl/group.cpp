// Groups of calls: checks of arguments and overlaps, and launches (group.h).
#include "dev/virtual_gpu/nccl/group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/nccl/elements.h"
#include "dev/virtual_gpu/nccl/launch.h"

namespace virtual_gpu::nccl {
namespace {

struct Group {
    int depth = 0;
    std::vector<std::pair<ncclComm*, Call>> calls;
    std::vector<ncclComm*> joins;
};
thread_local Group group;

// A range of memory that a call reads or writes.
struct Buffer {
    uint64_t begin, end;
    bool written;
    const char* name;
};
std::vector<Buffer> buffers_of(const ncclComm& comm, const Call& call) {
    std::vector<Buffer> buffers;
    const size_t size = size_of(call.type);
    const auto add = [&](const void* p, size_t from, size_t to, bool written) {
        const uint64_t begin = reinterpret_cast<uint64_t>(p);
        if (to > from)
            buffers.push_back({begin + from * size, begin + to * size, written, written ? "recvbuff" : "sendbuff"});
    };
    const size_t received = recv_extent(call, comm.rank, comm.ranks);
    add(call.send, 0, send_extent(call, comm.rank, comm.ranks), false);
    if (!call.reduces() && in_place(call, comm.rank, comm.ranks)) {  // data that is already in place is not written
        const size_t own = place(call, comm.rank);
        add(call.recv, 0, own, true);
        add(call.recv, own + call.count, received, true);
    } else {
        add(call.recv, 0, received, true);
    }
    return buffers;
}
bool conflict(const Buffer& a, const Buffer& b) {
    return (a.written || b.written) && a.begin < b.end && b.begin < a.end;
}

void check_arguments(const ncclComm& comm, const Call& call) {
    const std::string name = name_of(call.kind);
    const auto refuse = [&](const std::string& text) {
        throw Error(ncclInvalidArgument, comm.name() + ": " + name + ": " + text);
    };
    if (size_of(call.type) == 0) refuse(format("data type %d", static_cast<int>(call.type)));
    if (call.reduces() && call.op != ncclSum && call.op != ncclMax)
        refuse(format("the virtual GPU has no reduction %d", static_cast<int>(call.op)));
    if (call.reduces() && !can_reduce(call.type)) refuse(format("the virtual GPU reduces no %s", name_of(call.type)));
    if ((call.has_root() || !call.collective()) && (call.peer < 0 || call.peer >= comm.ranks))
        refuse(format("%s %d of %d ranks", call.collective() ? "root" : "peer", call.peer, comm.ranks));

    const std::vector<Buffer> buffers = buffers_of(comm, call);
    for (const Buffer& buffer : buffers) {
        // As with NCCL_CHECK_POINTERS=1. "Data Pointers": device memory or pinned memory.
        Range range;
        const uint64_t bytes = buffer.end - buffer.begin;
        if (!Memory::get().find(buffer.begin, bytes, range))
            refuse(format("%s: %llu bytes at 0x%llx: %s", buffer.name, static_cast<unsigned long long>(bytes),
                          static_cast<unsigned long long>(buffer.begin),
                          Memory::get().describe(buffer.begin, bytes).c_str()));
    }
    for (const Buffer& buffer : buffers)
        if (conflict(buffers.front(), buffer) && &buffer != &buffers.front() && !in_place(call, comm.rank, comm.ranks))
            refuse("sendbuff and recvbuff overlap, and do not lie as \"In-place Operations\" asks for");
}

// Refuses overlapping buffers, since the calls of a group run independently of each other.
void check_overlaps(const std::vector<std::pair<ncclComm*, Call>>& calls) {
    for (size_t i = 0; i < calls.size(); i++)
        for (size_t j = 0; j < i; j++)
            for (const Buffer& a : buffers_of(*calls[j].first, calls[j].second))
                for (const Buffer& b : buffers_of(*calls[i].first, calls[i].second))
                    if (conflict(a, b))
                        throw Error(ncclInvalidUsage, format("%s of %s and %s of %s overlap in one group", a.name,
                                                             calls[j].second.describe().c_str(), b.name,
                                                             calls[i].second.describe().c_str()));
}

void launch(ncclComm& comm, std::vector<Call> calls) {
    for (Call& call : calls)
        call.number =
            ++(call.collective() ? comm.collectives : (call.kind == Kind::send ? comm.sends : comm.recvs)[call.peer]);
    const OnDevice on(comm.device);  // "there is no need to set the CUDA device before every NCCL communication call"
    const auto shared = std::make_shared<Launch>(comm, std::move(calls));
    for (size_t i = 0; i < shared->streams().size(); i++) {
        const cudaError_t status = submit(
            shared->streams()[i], shared->name(), [shared] { shared->conclude(); },
            [shared, i] { return shared->poll(i); });
        if (status != cudaSuccess)
            throw Error(ncclUnhandledCudaError, format("%s: %s", shared->name().c_str(), cudaGetErrorString(status)));
    }
}

void launch_all(std::vector<std::pair<ncclComm*, Call>> calls) {
    check_overlaps(calls);
    while (!calls.empty()) {
        ncclComm* const comm = calls.front().first;
        std::vector<Call> own;
        for (const auto& [other, call] : calls)
            if (other == comm) own.push_back(call);
        std::erase_if(calls, [&](const auto& entry) { return entry.first == comm; });
        launch(*comm, std::move(own));
    }
}

}  // namespace

bool in_group() { return group.depth > 0; }
void group_start() { group.depth++; }

void group_end() {
    if (group.depth == 0) throw Error(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    if (--group.depth > 0) return;
    const auto calls = std::exchange(group.calls, {});
    const auto joins = std::exchange(group.joins, {});
    if (!calls.empty() && !joins.empty())
        throw Error(ncclInvalidUsage, "a group holds the creation of communicators and other calls");
    for (ncclComm* comm : joins) comm->join();
    launch_all(calls);
}

void enqueue(ncclComm& comm, const Call& call) {
    if (comm.life == ncclComm::Life::joining)
        throw Error(ncclInvalidUsage, comm.name() + " is used in the group that creates it");
    if (comm.life == ncclComm::Life::finalized)
        throw Error(ncclInvalidUsage, format("%s: %s after ncclCommFinalize", comm.name().c_str(), name_of(call.kind)));
    if (const ncclResult_t code = comm.failure(); code != ncclSuccess)
        throw Error(code, format("%s: %s after an error: %s", comm.name().c_str(), name_of(call.kind),
                                 ncclGetErrorString(code)));
    check_arguments(comm, call);
    // "Empty collectives can be discarded" (NCCL's enqueue.cc). Empty messages are still matched.
    if (call.collective() && call.count == 0) return;
    if (in_group())
        group.calls.emplace_back(&comm, call);
    else
        launch_all({{&comm, call}});
}

void enqueue_join(ncclComm& comm) {
    if (in_group())
        group.joins.push_back(&comm);
    else
        comm.join();
}

}  // namespace virtual_gpu::nccl
