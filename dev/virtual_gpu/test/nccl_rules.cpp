// The stand-in for NCCL: each rule that it checks, broken, with its message.
#include <cstring>

#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/test/nccl_ranks.h"

using namespace virtual_gpu::test;

namespace {

std::string last_error() { return ncclGetLastError(nullptr); }
bool says(const std::string& text) { return last_error().find(text) != std::string::npos; }

}  // namespace

// Each rank makes a different call. All ranks get the error, and nothing ends until the communicator is aborted.
TEST_CASE("nccl: ranks that are not in the same call") {
    if (!is_rank()) return expect_success(run_ranks(2));
    REQUIRE(cudaSetDevice(rank()) == cudaSuccess);
    const Array<float> in(std::vector<float>(8)), out(8);
    const cudaStream_t stream = new_stream();
    const bool first = rank() == 0;
    using Make = std::function<ncclResult_t(ncclComm_t)>;
    const auto check = [&](int which, const Make& call, const std::string& message) {
        CAPTURE(message);
        const ncclComm_t comm = communicator(which);
        CHECK(call(comm) == ncclSuccess);
        CHECK(await_error(comm) == ncclInvalidUsage);
        CHECK(says(message));
        CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
        CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, stream) == ncclInvalidUsage);
        CHECK(says("ncclAllReduce after an error"));
        CHECK(ncclCommAbort(comm) == ncclSuccess);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    };
    check(
        0,
        [&](ncclComm_t c) {
            return first ? ncclAllGather(in.get(), out.get(), 4, ncclFloat, c, stream)
                         : ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, c, stream);
        },
        "the operation differs: rank ");
    check(
        1,
        [&](ncclComm_t c) { return ncclAllReduce(in.get(), out.get(), first ? 4 : 5, ncclFloat, ncclSum, c, stream); },
        "the count differs: rank ");
    check(
        2,
        [&](ncclComm_t c) {
            return ncclAllReduce(in.get(), out.get(), 4, first ? ncclFloat : ncclInt32, ncclSum, c, stream);
        },
        "the data type differs: rank ");
    check(
        3,
        [&](ncclComm_t c) {
            return ncclAllReduce(in.get(), out.get(), 4, ncclFloat, first ? ncclSum : ncclMax, c, stream);
        },
        "the reduction differs: rank ");
    check(
        4, [&](ncclComm_t c) { return ncclBroadcast(in.get(), out.get(), 4, ncclFloat, first ? 0 : 1, c, stream); },
        "the root differs: rank ");
    check(
        5,
        [&](ncclComm_t c) {
            return first ? ncclSend(in.get(), 4, ncclFloat, 1, c, stream)
                         : ncclRecv(out.get(), 5, ncclFloat, 0, c, stream);
        },
        "the count differs: rank 0 sends 4 float32 (message #1), rank 1 receives 5 float32 (message #1)");
    check(
        6,
        [&](ncclComm_t c) {  // the second call of a group
            CHECK(ncclGroupStart() == ncclSuccess);
            CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, c, stream) == ncclSuccess);
            CHECK(ncclAllReduce(in.get(), out.at(4), first ? 3 : 4, ncclFloat, ncclSum, c, stream) == ncclSuccess);
            return ncclGroupEnd();
        },
        "(4 float32, sum)");
}

TEST_CASE("nccl: arguments") {
    if (!is_rank()) return expect_success(run_ranks(2));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const Array<float> in(std::vector<float>(8)), out(8), small(std::vector<float>(2));
    const auto refuse = [&](ncclResult_t status, const char* message) {
        CAPTURE(message);
        CAPTURE(last_error());
        CHECK(status == ncclInvalidArgument);
        CHECK(says(message));
    };
    float host[8];
    refuse(ncclAllGather(host, out.get(), 4, ncclFloat, comm, stream), "sendbuff: 16 bytes at 0x");
    refuse(ncclAllReduce(in.get(), host, 4, ncclFloat, ncclSum, comm, stream), "recvbuff: 16 bytes at 0x");
    refuse(ncclAllReduce(nullptr, out.get(), 4, ncclFloat, ncclSum, comm, stream), "sendbuff: 16 bytes at 0x0");
    refuse(ncclAllGather(in.get(), out.get(), 5, ncclFloat, comm, stream), "ncclAllGather: recvbuff: 40 bytes");
    refuse(ncclReduceScatter(in.get(), out.get(), 5, ncclFloat, ncclSum, comm, stream), "sendbuff: 40 bytes");
    refuse(ncclAllReduce(small.get(), out.get(), 3, ncclFloat, ncclSum, comm, stream), "past an allocation of 8 bytes");
    // In-place buffers are only allowed at their place.
    const size_t other = rank() == 0 ? 4 : 0;
    refuse(ncclAllGather(in.at(other), in.get(), 4, ncclFloat, comm, stream), "sendbuff and recvbuff overlap");
    refuse(ncclReduceScatter(in.get(), in.at(other), 4, ncclFloat, ncclSum, comm, stream),
           "sendbuff and recvbuff overlap");
    refuse(ncclAllReduce(in.get(), in.at(1), 4, ncclFloat, ncclSum, comm, stream), "sendbuff and recvbuff overlap");
    refuse(ncclAlltoAll(in.get(), in.get(), 4, ncclFloat, comm, stream), "sendbuff and recvbuff overlap");
    // Invalid numbers.
    refuse(ncclBroadcast(in.get(), out.get(), 4, ncclFloat, 2, comm, stream), "root 2 of 2 ranks");
    refuse(ncclBroadcast(in.get(), out.get(), 4, ncclFloat, -1, comm, stream), "root -1 of 2 ranks");
    refuse(ncclSend(in.get(), 4, ncclFloat, 2, comm, stream), "peer 2 of 2 ranks");
    refuse(ncclAllReduce(in.get(), out.get(), 4, ncclNumTypes, ncclSum, comm, stream), "data type 12");
    refuse(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclMin, comm, stream), "has no reduction 3");
    refuse(ncclAllReduce(in.get(), out.get(), 4, ncclInt8, ncclSum, comm, stream), "reduces no int8");
    refuse(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, nullptr, stream), "the communicator is NULL");
    // None of these counts as a call.
    CHECK(ncclAllReduce(in.get(), out.get(), 8, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, comm, stream) ==
          ncclSuccess);  // an empty collective is discarded
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

TEST_CASE("nccl: groups") {
    if (!is_rank()) return expect_success(run_ranks(2));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const Array<float> in(std::vector<float>(8)), out(8);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(says("not in a group call"));
    // Two calls of a group that use the same memory.
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclAllReduce(out.at(3), in.at(4), 4, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(says("overlap in one group"));
    // A refused argument leaves the group unchanged.
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclBroadcast(in.get(), in.get(), 4, ncclFloat, 7, comm, stream) == ncclInvalidArgument);
    CHECK(ncclBroadcast(in.get(), in.get(), 4, ncclFloat, 0, comm, stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    // Creating communicators and other calls cannot be in one group.
    ncclComm_t part = nullptr;
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclCommSplit(comm, 0, 0, &part, nullptr) == ncclInvalidUsage);
    CHECK(ncclCommInitRank(&part, 2, unique_id(1), rank()) == ncclSuccess);
    CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, part, stream) == ncclInvalidUsage);
    CHECK(says("is used in the group that creates it"));
    CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(says("the creation of communicators and other calls"));
}

TEST_CASE("nccl: memory that was never written is not sent") {
    if (!is_rank()) {
        const auto ended = run_ranks(1);
        expect_success(ended);
        CHECK(contains(ended[0], "ncclAllReduce #1 (4 float32, sum): sendbuff: byte 0 of 16 was never written"));
        return;
    }
    const ncclComm_t comm = communicator();
    const Array<float> in(4), out(4);
    CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, comm, nullptr) == ncclSuccess);
    CHECK(cudaDeviceSynchronize() != cudaSuccess);
    CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, comm, nullptr) == ncclUnhandledCudaError);
}

TEST_CASE("nccl: the life of a communicator") {
    if (!is_rank()) return expect_success(run_ranks(1));
    const ncclComm_t comm = communicator();
    const Array<float> in(std::vector<float>(4)), out(4);
    const auto use = [&](ncclComm_t c) {
        return ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, c, nullptr);
    };
    CHECK(use(comm) == ncclSuccess);
    CHECK(ncclCommFinalize(comm) == ncclSuccess);
    CHECK(cudaStreamQuery(nullptr) == cudaSuccess);  // all has run
    CHECK(use(comm) == ncclInvalidUsage);
    CHECK(says("ncclAllReduce after ncclCommFinalize"));
    CHECK(ncclCommFinalize(comm) == ncclInvalidArgument);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(use(comm) == ncclInvalidArgument);
    CHECK(says("communicator 1 (rank 0 of 1) was destroyed"));
    CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
    ncclResult_t status = ncclSuccess;
    CHECK(ncclCommGetAsyncError(comm, &status) == ncclInvalidArgument);
    const ncclComm_t another = communicator(1);
    CHECK(ncclCommAbort(another) == ncclSuccess);
    CHECK(use(another) == ncclInvalidArgument);
    CHECK(says("communicator 2 (rank 0 of 1) was aborted"));
    int nothing = 0;
    CHECK(use(reinterpret_cast<ncclComm_t>(&nothing)) == ncclInvalidArgument);
    CHECK(says("is no communicator"));
}

TEST_CASE("nccl: invalid ways to create communicators") {
    if (!is_rank()) return expect_success(run_ranks(1, {{"VIRTUAL_GPU_DEVICES", "3"}}));
    ncclComm_t comm = nullptr, more = nullptr;
    CHECK(ncclCommInitRank(&comm, 2, unique_id(0), 2) == ncclInvalidArgument);
    CHECK(says("rank 2 of 2 ranks"));
    CHECK(ncclCommInitRank(&comm, 2, unique_id(0), -1) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(&comm, 0, unique_id(0), 0) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(nullptr, 2, unique_id(0), 0) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(&comm, 2, ncclUniqueId{}, 0) == ncclInvalidArgument);
    CHECK(says("does not come from ncclGetUniqueId"));
    ncclConfig_t config = {};
    CHECK(ncclCommInitRankConfig(&comm, 2, unique_id(0), 0, &config) == ncclInvalidArgument);
    CHECK(says("NCCL_CONFIG_INITIALIZER"));
    // The same rank twice, and different numbers of ranks.
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(ncclCommInitRank(&comm, 2, unique_id(0), 0) == ncclSuccess);
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(ncclCommInitRank(&more, 2, unique_id(0), 0) == ncclInvalidUsage);
    CHECK(says("rank 0 of 2 has come twice"));
    CHECK(ncclCommInitRank(&more, 3, unique_id(0), 1) == ncclInvalidArgument);
    CHECK(says("rank 1 counts 3 ranks, and another that came before it 2"));
    CHECK(ncclCommInitRank(&more, 2, unique_id(0), 1) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    // Two ranks on one card.
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclCommInitRank(&comm, 2, unique_id(1), 0) == ncclSuccess);
    CHECK(ncclCommInitRank(&more, 2, unique_id(1), 1) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(says("Duplicate GPU detected: rank 0 and rank 1 both on CUDA device"));
}
