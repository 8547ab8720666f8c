// The stand-in for NCCL: orders of sums, messages, groups and communicators. What every collective moves and sums is in
// test/comm/ranks/collectives.cpp, which runs over this stand-in, too.
#include <atomic>
#include <memory>

#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/test/nccl_ranks.h"

using namespace virtual_gpu::test;

namespace {

constexpr size_t kMany = 100'003;  // floats: more than fit between two ranks at once

// Values of a rank, all different.
std::vector<float> values_of(int r, size_t n) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; i++) values[i] = static_cast<float>(i) + 0.25f * static_cast<float>(r + 1);
    return values;
}
std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
    std::vector<float> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}
std::vector<float> sum_of(int count, size_t n) {
    std::vector<float> sum = values_of(0, n);
    for (int r = 1; r < count; r++) {
        const std::vector<float> more = values_of(r, n);
        for (size_t i = 0; i < n; i++) sum[i] += more[i];
    }
    return sum;
}

}  // namespace

TEST_CASE("nccl: sums are taken in rank order and every rank has the same bits") {
    if (!is_rank()) return expect_success(run_ranks(3));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const float own[] = {1e8f, 1.0f, -1e8f};
    const Array<float> in(std::vector<float>{own[rank()]}), out(1);
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(out.values()[0] == 0.0f);  // (1e8 + 1) - 1e8; another order gives 1
}

TEST_CASE("nccl: messages of a group go by peer and order") {
    if (!is_rank()) return expect_success(run_ranks(3));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    // Two messages of different sizes to each rank, including itself.
    std::vector<std::unique_ptr<Array<float>>> out, in;
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < 3; peer++)
        for (const size_t n : {kMany, size_t{3}}) {
            out.push_back(std::make_unique<Array<float>>(values_of(rank() * 3 + peer, n)));
            in.push_back(std::make_unique<Array<float>>(n));
            CHECK(ncclSend(out.back()->get(), n, ncclFloat, peer, comm, stream) == ncclSuccess);
            CHECK(ncclRecv(in.back()->get(), n, ncclFloat, peer, comm, stream) == ncclSuccess);
        }
    CHECK(ncclGroupEnd() == ncclSuccess);
    for (int peer = 0; peer < 3; peer++) {
        CHECK(in[static_cast<size_t>(2 * peer)]->values() == values_of(peer * 3 + rank(), kMany));
        CHECK(in[static_cast<size_t>(2 * peer + 1)]->values() == values_of(peer * 3 + rank(), 3));
    }
}

TEST_CASE("nccl: a group of several streams begins on all and ends on all") {
    if (!is_rank()) return expect_success(run_ranks(2));
    const ncclComm_t comm = communicator();
    const cudaStream_t one = new_stream(), two = new_stream();
    const Array<float> a(values_of(rank(), 4)), b(values_of(rank(), 4)), sum_a(4), sum_b(4);
    std::atomic<bool> open{false}, second_asked{false};
    virtual_gpu::submit(
        two, "work before it", [] {},
        [&] {
            second_asked = true;
            return open.load();
        });
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);  // no effect inside another group
    CHECK(ncclAllReduce(a.get(), sum_a.get(), 4, ncclFloat, ncclSum, comm, one) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(cudaStreamQuery(one) == cudaSuccess);  // empty before the end of the group
    CHECK(ncclAllReduce(b.get(), sum_b.get(), 4, ncclFloat, ncclSum, comm, two) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(eventually([&] { return second_asked.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(cudaStreamQuery(one) == cudaErrorNotReady);
    open = true;
    CHECK(cudaStreamSynchronize(one) == cudaSuccess);
    CHECK(sum_b.values() == sum_of(2, 4));
    CHECK(sum_a.values() == sum_of(2, 4));
}

TEST_CASE("nccl: received data is not visible before the end") {
    if (!is_rank()) return expect_success(run_ranks(2, {}, {{1, {{"VIRTUAL_GPU_FAULT", "stall:1"}}}}));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const Array<float> in(values_of(rank(), 4)), out(values_of(rank(), 4));
    CHECK(ncclAllReduce(in.get(), out.get(), 4, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    // Work on another stream looks at the result until it finds it missing.
    const auto missing = [&] {
        try {
            virtual_gpu::Memory::get().readable(out.get(), 16, "test");
            return false;
        } catch (const virtual_gpu::Fault&) {
            return true;
        }
    };
    const cudaStream_t reader = new_stream();
    virtual_gpu::submit(
        reader, "a look", [] {}, missing);
    CHECK(eventually([&] { return cudaStreamQuery(reader) == cudaSuccess; }));
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK(ncclCommAbort(comm) == ncclSuccess);  // frees the stream and leaves the result undefined
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(missing());
}

TEST_CASE("nccl: communicators are split by color and ordered by key") {
    if (!is_rank()) return expect_success(run_ranks(3));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    ncclComm_t pair = nullptr, none = nullptr;
    for (int round = 0; round < 2; round++) {
        CHECK(ncclCommSplit(comm, rank() == 1 ? 5 : 0, -rank(), &pair, nullptr) == ncclSuccess);
        CHECK(ncclCommSplit(comm, rank() == 1 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, nullptr) == ncclSuccess);
        CHECK((none == nullptr) == (rank() == 1));
        const Array<float> in(values_of(rank(), 2)), out(rank() == 1 ? 2 : 4);
        CHECK(ncclAllGather(in.get(), out.get(), 2, ncclFloat, pair, stream) == ncclSuccess);
        CHECK(out.values() == (rank() == 1 ? values_of(1, 2) : joined({values_of(2, 2), values_of(0, 2)})));
        CHECK(ncclCommDestroy(pair) == ncclSuccess);
    }
}

TEST_CASE("nccl: one thread manages several devices") {
    if (!is_rank()) return expect_success(run_ranks(1, {{"VIRTUAL_GPU_DEVICES", "2"}, {"VIRTUAL_GPU_NCCL", "22304"}}));
    ncclUniqueId id;
    ncclComm_t comms[2];
    cudaStream_t streams[2];
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 2; r++) {
        CHECK(cudaSetDevice(r) == cudaSuccess);
        streams[r] = new_stream();
        CHECK(ncclCommInitRank(&comms[r], 2, id, r) == ncclSuccess);
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
    const Array<float> in0(values_of(0, 3)), in1(values_of(1, 3)), out0(3), out1(3);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclAllReduce(in0.get(), out0.get(), 3, ncclFloat, ncclSum, comms[0], streams[0]) == ncclSuccess);
    CHECK(ncclAllReduce(in1.get(), out1.get(), 3, ncclFloat, ncclSum, comms[1], streams[1]) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    for (const cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(out0.values() == sum_of(2, 3));
    CHECK(out1.values() == sum_of(2, 3));
    // The unique id was for this communicator only.
    ncclComm_t again = nullptr;
    CHECK(ncclCommInitRank(&again, 2, id, 0) == ncclSystemError);
    int version = 0;
    CHECK(ncclGetVersion(&version) == ncclSuccess);
    CHECK(version == 22304);
}
