// The stand-in for NCCL: the data that every call moves and sums between processes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>

#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/memory.h"
#include "test/virtual_gpu/nccl_ranks.h"

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
std::vector<float> slice(const std::vector<float>& all, int which, size_t n) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(which) * n);
    return {begin, begin + static_cast<ptrdiff_t>(n)};
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

TEST_CASE("nccl: collectives move and sum") {
    if (!is_rank()) return expect_success(run_ranks(3));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const int root = 1;
    for (const size_t n : {size_t{1}, size_t{7}, kMany}) {
        const size_t all = 3 * n;
        const std::vector<float> own = values_of(rank(), n), wide = values_of(rank(), all);
        const std::vector<float> everybody = joined({values_of(0, n), values_of(1, n), values_of(2, n)});
        const Array<float> in(own), from(wide), gathered(all), reduced(n), scattered(n), told(n), at_root(n),
            exchanged(all), collected(all), given(n);
        CHECK(ncclAllGather(in.get(), gathered.get(), n, ncclFloat, comm, stream) == ncclSuccess);
        CHECK(ncclAllReduce(in.get(), reduced.get(), n, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
        CHECK(ncclReduceScatter(from.get(), scattered.get(), n, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
        CHECK(ncclBroadcast(in.get(), told.get(), n, ncclFloat, root, comm, stream) == ncclSuccess);
        CHECK(ncclReduce(in.get(), at_root.get(), n, ncclFloat, ncclSum, root, comm, stream) == ncclSuccess);
        CHECK(ncclAlltoAll(from.get(), exchanged.get(), n, ncclFloat, comm, stream) == ncclSuccess);
        CHECK(ncclGather(in.get(), collected.get(), n, ncclFloat, root, comm, stream) == ncclSuccess);
        CHECK(ncclScatter(from.get(), given.get(), n, ncclFloat, root, comm, stream) == ncclSuccess);
        CHECK(gathered.values() == everybody);
        CHECK(reduced.values() == sum_of(3, n));
        CHECK(scattered.values() == slice(sum_of(3, all), rank(), n));
        CHECK(told.values() == values_of(root, n));
        CHECK(exchanged.values() == joined({slice(values_of(0, all), rank(), n), slice(values_of(1, all), rank(), n),
                                            slice(values_of(2, all), rank(), n)}));
        CHECK(given.values() == slice(values_of(root, all), rank(), n));
        if (rank() == root) CHECK(at_root.values() == sum_of(3, n));
        if (rank() == root) CHECK(collected.values() == everybody);
    }
}

TEST_CASE("nccl: collectives in place") {
    if (!is_rank()) return expect_success(run_ranks(3));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const size_t n = 5, all = 3 * n, own = static_cast<size_t>(rank()) * n;
    std::vector<float> mine(all, -1.0f);
    const std::vector<float> part = values_of(rank(), n);
    std::copy(part.begin(), part.end(), mine.begin() + static_cast<ptrdiff_t>(own));
    const Array<float> gathered(mine), reduced(values_of(rank(), n)), scattered(values_of(rank(), all)),
        told(values_of(rank(), n)), again(values_of(rank(), n));
    CHECK(ncclAllGather(gathered.at(own), gathered.get(), n, ncclFloat, comm, stream) == ncclSuccess);
    CHECK(ncclAllReduce(reduced.get(), reduced.get(), n, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclReduceScatter(scattered.get(), scattered.at(own), n, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclBroadcast(told.get(), told.get(), n, ncclFloat, 2, comm, stream) == ncclSuccess);
    CHECK(ncclBcast(again.get(), n, ncclFloat, 0, comm, stream) == ncclSuccess);
    CHECK(gathered.values() == joined({values_of(0, n), values_of(1, n), values_of(2, n)}));
    CHECK(reduced.values() == sum_of(3, n));
    CHECK(slice(scattered.values(), rank(), n) == slice(sum_of(3, all), rank(), n));
    CHECK(told.values() == values_of(2, n));
    CHECK(again.values() == values_of(0, n));
}

template <class T>
static void check_type(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type) {
    CAPTURE(static_cast<int>(type));
    const Array<T> in(std::vector<T>(3, static_cast<T>(rank() == 0 ? 2.0f : 5.0f)));
    const float expected[] = {7, 10, 5, 2, std::is_integral_v<T> ? 3.0f : 3.5f};
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
        const Array<T> out(3);
        CHECK(ncclAllReduce(in.get(), out.get(), 3, type, op, comm, stream) == ncclSuccess);
        for (const T value : out.values()) CHECK(static_cast<float>(value) == expected[op]);
    }
}

TEST_CASE("nccl: all types and reductions") {
    if (!is_rank()) return expect_success(run_ranks(2));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    check_type<int8_t>(comm, stream, ncclInt8);
    check_type<uint8_t>(comm, stream, ncclUint8);
    check_type<int32_t>(comm, stream, ncclInt32);
    check_type<uint32_t>(comm, stream, ncclUint32);
    check_type<int64_t>(comm, stream, ncclInt64);
    check_type<uint64_t>(comm, stream, ncclUint64);
    check_type<__half>(comm, stream, ncclFloat16);
    check_type<__nv_bfloat16>(comm, stream, ncclBfloat16);
    check_type<float>(comm, stream, ncclFloat32);
    check_type<double>(comm, stream, ncclFloat64);
    // Negative numbers and numbers that do not fit into a float.
    const int64_t big = (int64_t{1} << 62) + 1;
    const Array<int64_t> in(std::vector<int64_t>{rank() == 0 ? big : -3}), out(1);
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclInt64, ncclSum, comm, stream) == ncclSuccess);
    CHECK(out.values()[0] == big - 3);
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclInt64, ncclMin, comm, stream) == ncclSuccess);
    CHECK(out.values()[0] == -3);
}

TEST_CASE("nccl: sums are taken in rank order and every rank has the same bits") {
    if (!is_rank()) return expect_success(run_ranks(3));
    const ncclComm_t comm = communicator();
    const cudaStream_t stream = new_stream();
    const float own[] = {1e8f, 1.0f, -1e8f};
    const Array<float> in(std::vector<float>{own[rank()]}), out(1);
    CHECK(ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    CHECK(out.values()[0] == 0.0f);              // (1e8 + 1) - 1e8; another order gives 1
    const float small[] = {256.0f, 1.0f, 1.0f};  // bfloat16: 256 + 1 is 256
    const Array<__nv_bfloat16> short_in(std::vector<__nv_bfloat16>{__float2bfloat16(small[rank()])}), short_out(1);
    CHECK(ncclAllReduce(short_in.get(), short_out.get(), 1, ncclBfloat16, ncclSum, comm, stream) == ncclSuccess);
    CHECK(__bfloat162float(short_out.values()[0]) == 256.0f);
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
        int count = 0, as = -1, device = -1;
        CHECK(ncclCommCount(pair, &count) == ncclSuccess);
        CHECK(ncclCommUserRank(pair, &as) == ncclSuccess);
        CHECK(ncclCommCuDevice(pair, &device) == ncclSuccess);
        CHECK(count == (rank() == 1 ? 1 : 2));
        CHECK(as == (rank() == 0 ? 1 : 0));
        CHECK(device == rank());
        const Array<float> in(values_of(rank(), 2)), out(static_cast<size_t>(2 * count));
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
