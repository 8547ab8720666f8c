// A world of one rank, and worlds that are only planned. test/comm/ranks/ tests several ranks.
#include "llmc/comm/comm.h"

#include <string>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("comm: one rank is a world whose collectives copy") {
    const Comm comm = Comm::self();
    CHECK(comm.rank() == 0);
    CHECK(comm.world() == 1);
    CHECK(comm.is_main());
    CHECK(std::string(comm.name()) == "self");
    CHECK(comm.local_rank() == 0);
    CHECK(comm.local_world() == 1);
    CHECK_FALSE(comm.host(0).empty());
    CHECK(comm.failure().empty());
    comm.attach_device();

    const std::vector<float> values = random_normal<float>(77, 1.0f, 3);
    DeviceArray<float> in(values), out(77);
    CHECK(comm.reduce_scatter_workspace(77, Wire::bf16, true) == 0);
    CHECK(comm.all_reduce_workspace<float>(77) == 0);
    comm.all_gather(out, in, 77 * sizeof(float), test_stream());
    CHECK(out.download() == values);
    DeviceArray<float> again(77);
    comm.all_to_all(again, in, 77 * sizeof(float), test_stream());
    CHECK(again.download() == values);
    DeviceArray<float> uneven(77);
    comm.all_to_all_v(uneven, {77 * sizeof(float)}, in, {77 * sizeof(float)}, test_stream());
    CHECK(uneven.download() == values);
    CHECK_THROWS_AS(comm.all_to_all_v(in, {4}, in, {4}, test_stream()), Error);
    DeviceArray<float> sum(77);
    comm.reduce_scatter(sum, in, 77, Wire::bf16, false, nullptr, test_stream());  // nothing is sent or rounded
    CHECK(sum.download() == values);
    comm.reduce_scatter(sum, in, 77, Wire::bf16, true, nullptr, test_stream());
    std::vector<float> doubled = values;
    for (float& value : doubled) value *= 2;
    CHECK(sum.download() == doubled);
    comm.all_gather(in, in, 77 * sizeof(float), test_stream());
    comm.reduce_scatter(in, in, 77, Wire::fp32, false, nullptr, test_stream());
    comm.all_reduce<float>(in.get(), 77, ReduceOp::sum, nullptr, test_stream());
    comm.broadcast(in, 4, 0, test_stream());
    CHECK(in.download() == values);
    CHECK_THROWS_AS(comm.all_to_all(in, in, 4, test_stream()), Error);
    CHECK_THROWS_AS(comm.broadcast(in, 4, 1, test_stream()), Error);

    CHECK(comm.host_max(-5) == -5);
    int32_t from = 9, to = 0;
    comm.host_all_gather(&to, &from, sizeof from);
    CHECK(to == 9);
    comm.host_broadcast(&to, sizeof to, 0);
    comm.barrier();
    comm.require_equal("configuration", "anything");
    CHECK(comm.traffic().all_gather.calls == 2);
    CHECK(comm.traffic().all_gather.bytes == 0);
    CHECK(comm.neighbours(1, "neighbours").world() == 1);
    CHECK(comm.counterparts(1, "counterparts").world() == 1);
    CHECK_THROWS_WITH_AS(comm.neighbours(2, "neighbours"),
                         "1 ranks cannot be divided into groups of 2; the size of a group must "
                         "divide the number of ranks",
                         Error);
    comm.finish();
}

TEST_CASE("comm: a planned world reports its memory and does nothing") {
    const Comm mpi = Comm::planned(4), nccl = Comm::planned(4, "nccl"),
               ordered = Comm::planned(4, "nccl", ReduceOrder::rank);
    CHECK(mpi.world() == 4);
    CHECK(mpi.reduce_scatter_workspace(1000, Wire::fp32, false) == 63 * 256);  // 16000 bytes, rounded up
    CHECK(mpi.reduce_scatter_workspace(64, Wire::bf16, false) == 2 * 4 * 64 * 2);
    CHECK(nccl.reduce_scatter_workspace(1000, Wire::fp32, false) == 0);
    CHECK(nccl.reduce_scatter_workspace(1000, Wire::fp32, true) == 16 * 256);  // 4000 bytes, rounded up
    CHECK(nccl.reduce_scatter_workspace(64, Wire::bf16, false) == 2 * 4 * 64 * 2);
    CHECK(ordered.reduce_scatter_workspace(64, Wire::fp32, false) == 4 * 64 * 4);
    CHECK(nccl.all_reduce_workspace<float>(64) == 0);
    CHECK(mpi.all_reduce_workspace<double>(64) == 4 * 64 * 8);
    CHECK(mpi.neighbours(2, "neighbours").world() == 2);
    CHECK(mpi.counterparts(2, "counterparts").world() == 2);
    CHECK(mpi.neighbours(1, "neighbours").reduce_scatter_workspace(64, Wire::fp32, false) == 0);
    CHECK_THROWS_AS(mpi.neighbours(3, "neighbours"), Error);
    DeviceArray<float> data(4);
    CHECK_THROWS_AS(mpi.all_gather(data, data, 4, test_stream()), Error);
    CHECK_THROWS_AS(mpi.barrier(), Error);
    CHECK(Comm::planned(1).world() == 1);
}
