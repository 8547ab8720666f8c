// The data movement of each call: which elements of whose buffer go to which rank, and where they land. Everything else
// (checks of buffers, transfers, results) follows from this table.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace virtual_gpu::nccl {

enum class Kind : uint32_t { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, send, recv };
const char* name_of(Kind kind);

// A call as the program made it. `peer` is the root, or the other rank of a send or recv.
struct Call {
    Kind kind;
    const void* send;
    void* recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    int peer = 0;
    cudaStream_t stream = nullptr;
    uint64_t number = 0;  // counted per communicator for collectives, and per pair of ranks for other calls; from 1

    bool collective() const { return kind != Kind::send && kind != Kind::recv; }
    bool reduces() const { return kind == Kind::reduce_scatter || kind == Kind::all_reduce; }
    bool has_root() const { return kind == Kind::broadcast; }
    std::string describe() const;  // "ncclAllReduce #3 (128 float32, sum)"
};

struct Elements {
    size_t at = 0, count = 0;
};
// The elements of the sendbuff of `from` that go to `to` in a collective.
Elements sent(const Call& call, int from, int to, int ranks);
// The place in the recvbuff for data from `from`. In a reduction, all data lands at the same place.
size_t place(const Call& call, int from);

// The number of elements of its buffers that a rank uses.
size_t send_extent(const Call& call, int rank, int ranks);
size_t recv_extent(const Call& call, int rank, int ranks);
// True if sendbuff and recvbuff lie as the documentation's "In-place Operations" requires.
bool in_place(const Call& call, int rank, int ranks);

// A message before the data, with everything that must agree on both ranks.
struct Label {
    Kind kind;
    uint32_t type, op;
    int32_t root;
    uint64_t count, number;
};
Label label_of(const Call& call);
// The difference between two labels, or "": "rank 0 is in ncclAllReduce #3 (...), rank 1 in ncclAllGather #3 (...)".
std::string difference(const Label& one, int rank_of_one, const Label& other, int rank_of_other);

}  // namespace virtual_gpu::nccl
