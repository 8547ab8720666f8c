// The stand-in for NCCL: several communicators on one card, and ranks that die or never come.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/nccl/segment.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/test/nccl_ranks.h"

using namespace virtual_gpu::test;

namespace {

constexpr double kForEver = 1e9, kPatience = 0.05;

// A barrier on the host, independent of the streams.
void barrier(ncclComm_t comm) {
    ncclComm_t none = nullptr;
    CHECK(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr) == ncclSuccess);
}

bool nothing_moves() { return std::string(ncclGetLastError(nullptr)).find("nothing has moved") != std::string::npos; }

// Both ranks issue A, then B, on separate streams. On rank 1, A's stream stays busy until B's stream has been reached:
// its work is asked like B whenever the device looks for work, and becomes ready after many times.
void two_communicators(bool expect_deadlock) {
    constexpr int kManyTimes = 10;
    virtual_gpu::nccl::set_patience(kForEver);
    const ncclComm_t a = communicator(0), b = communicator(1);
    const cudaStream_t one = new_stream(), two = new_stream();
    const Array<float> in(std::vector<float>{1}), sum_a(1), sum_b(1);
    std::atomic<bool> issued{false};
    std::atomic<int> asked{0};
    if (rank() == 1)
        virtual_gpu::submit(
            one, "work", [] {}, [&] { return issued && ++asked > kManyTimes; });
    CHECK(ncclAllReduce(in.get(), sum_a.get(), 1, ncclFloat, ncclSum, a, one) == ncclSuccess);
    CHECK(ncclAllReduce(in.get(), sum_b.get(), 1, ncclFloat, ncclSum, b, two) == ncclSuccess);
    issued = true;
    if (rank() == 1) CHECK(eventually([&] { return asked > kManyTimes; }));
    if (expect_deadlock) {
        barrier(a);
        if (rank() == 0) {
            virtual_gpu::nccl::set_patience(kPatience);
            CHECK(eventually(nothing_moves));
        }
        barrier(b);
        for (const ncclComm_t comm : {a, b}) {
            ncclResult_t status = ncclInternalError;
            CHECK(ncclCommGetAsyncError(comm, &status) == ncclSuccess);
            CHECK(status == ncclSuccess);  // NCCL does not notice
        }
        for (const cudaStream_t stream : {one, two}) CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
        barrier(a);
        for (const ncclComm_t comm : {a, b}) CHECK(ncclCommAbort(comm) == ncclSuccess);
    }
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    if (!expect_deadlock) CHECK(sum_a.values()[0] + sum_b.values()[0] == 4);
}

// Rank 0 names the operation on the communicator in which it waits, or on the other.
void expect_deadlock_of_two(const std::vector<Child>& ended) {
    expect_success(ended);
    const std::string a = "ncclAllReduce #1 (1 float32, sum) on communicator 1";
    const std::string b = "ncclAllReduce #1 (1 float32, sum) on communicator 2";
    CHECK((contains(ended[0], "rank 0 is in " + a + "; rank 1 waits to start " + a + " behind " + b) ||
           contains(ended[0], "rank 0 waits to start " + b + " behind " + a + "; rank 1 is in " + b)));
}

}  // namespace

TEST_CASE("nccl: communicators that start in different orders wait for each other") {
    if (!is_rank()) return expect_deadlock_of_two(run_ranks(2));
    two_communicators(true);
}

TEST_CASE("nccl: before 2.26 asking for the host's order does not help") {
    if (!is_rank())
        return expect_deadlock_of_two(
            run_ranks(2, {{"VIRTUAL_GPU_NCCL", "22506"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}));
    two_communicators(true);
}

TEST_CASE("nccl: from 2.26 on communicators can start in the host's order") {
    if (!is_rank())
        return expect_success(run_ranks(2, {{"VIRTUAL_GPU_NCCL", "22602"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}));
    two_communicators(false);
}

TEST_CASE("nccl: calls on one communicator run in the order of the calls") {
    if (!is_rank()) return expect_success(run_ranks(2));
    const ncclComm_t comm = communicator();
    const cudaStream_t one = new_stream(), two = new_stream();
    const Array<float> in(std::vector<float>{1}), first(1), second(1);
    std::atomic<bool> open{false};
    virtual_gpu::submit(
        one, "work", [] {}, [&] { return open.load(); });
    CHECK(ncclAllReduce(in.get(), first.get(), 1, ncclFloat, ncclSum, comm, one) == ncclSuccess);
    CHECK(ncclAllReduce(in.get(), second.get(), 1, ncclFloat, ncclMax, comm, two) == ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(cudaStreamQuery(two) == cudaErrorNotReady);
    open = true;
    CHECK(cudaStreamSynchronize(two) == cudaSuccess);
    CHECK(cudaStreamQuery(one) == cudaSuccess);
    CHECK(first.values()[0] == 2);
    CHECK(second.values()[0] == 1);
}

// If streams are not in plain order, another stream's work that does not wait for a call runs before it.
TEST_CASE("nccl: communication takes its time") {
    if (!is_rank()) {
        expect_success(run_ranks(1));
        return expect_success(run_ranks(1, {{"VIRTUAL_GPU_STREAMS", "lazy"}}));
    }
    const ncclComm_t comm = communicator();
    const cudaStream_t one = new_stream(), two = new_stream();
    const Array<float> in(std::vector<float>{1}), out(std::vector<float>{2});
    std::atomic<bool> issued{false};
    virtual_gpu::submit(
        one, "work", [] {}, [&] { return issued.load(); });
    virtual_gpu::submit(
        two, "work", [] {}, [&] { return issued.load(); });
    float seen = 0;
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, one) == ncclSuccess);
    virtual_gpu::submit(two, "a look", [&] {
        std::memcpy(&seen, virtual_gpu::Memory::get().readable(out.get(), sizeof seen, "a look"), sizeof seen);
    });
    issued = true;
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(seen == (virtual_gpu::options().streams == virtual_gpu::Streams::now ? 1.0f : 2.0f));
    CHECK(out.values()[0] == 1);
}

TEST_CASE("nccl: a send that nobody receives") {
    if (!is_rank()) {
        const auto ended = run_ranks(2);
        expect_success(ended);
        CHECK(contains(ended[0],
                       "rank 0 is in ncclSend #1 (1 float32, to rank 1) on communicator 1; rank 1 has called "
                       "nothing"));
        return;
    }
    virtual_gpu::nccl::set_patience(kPatience);
    const ncclComm_t comm = communicator();
    const Array<float> in(std::vector<float>{1});
    const cudaStream_t stream = new_stream();
    if (rank() == 0) {
        CHECK(ncclSend(in.get(), 1, ncclFloat, 1, comm, stream) == ncclSuccess);
        CHECK(eventually(nothing_moves));
        CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    }
    virtual_gpu::nccl::set_patience(kForEver);
    barrier(comm);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

TEST_CASE("nccl: a rank that dies") {
    if (!is_rank()) {
        const auto ended = run_ranks(3);
        expect_success({ended[0], ended[2]});
        CHECK(
            contains(ended[0], "ncclAllReduce #2 (1 float32, sum) on communicator 1 waits for rank 1, which is gone"));
        return;
    }
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const Array<float> in(std::vector<float>{1}), out(1);
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    if (rank() == 1) _exit(3);
    // Data that it had sent before is not lost: the first call ended. The next cannot.
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(await_error(comm) == ncclRemoteError);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

TEST_CASE("nccl: a rank that dies before all have come") {
    if (!is_rank()) {
        const auto ended = run_ranks(2);
        expect_success({ended[0]});
        CHECK(contains(ended[0], "rank 0 waits in the creation of a communicator, and rank 1 is gone"));
        return;
    }
    ncclComm_t comm = nullptr;
    REQUIRE(cudaSetDevice(rank()) == cudaSuccess);
    if (rank() == 1) {
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(ncclCommInitRank(&comm, 3, unique_id(0), 1) == ncclSuccess);
        _exit(0);
    }
    CHECK(ncclCommInitRank(&comm, 3, unique_id(0), 0) == ncclRemoteError);
}

TEST_CASE("nccl: a rank that never comes is named") {
    if (!is_rank()) return expect_success(run_ranks(1, {{"VIRTUAL_GPU_DEVICES", "2"}}));
    virtual_gpu::nccl::set_patience(kPatience);
    std::thread first([] { communicator(0, 2, 0); });
    const auto named = [] {
        return std::string(ncclGetLastError(nullptr))
            .ends_with("s in the creation of a communicator; rank 1 has not come");
    };
    CHECK(eventually(named));
    ncclComm_t comm = nullptr;
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(ncclCommInitRank(&comm, 2, unique_id(0), 1) == ncclSuccess);
    first.join();
}
