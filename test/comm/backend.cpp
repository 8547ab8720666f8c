// Several communicators of a process: the order of their collectives on one device, and their failures.
// build: per device
#include "llmc/comm/backend.h"

#include "llmc/comm/watchdog.h"
#include "test/kernel_test.h"
#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif

using namespace llmc;
using namespace llmc::test;

namespace {

class Broken final : public Backend {
public:
    std::string problem;
    void all_gather(void*, const void*, size_t, const char*, stream_t) override {}
    void all_to_all(void*, const void*, size_t, const char*, stream_t) override {}
    void all_to_all_v(void*, const std::vector<size_t>&, const void*, const std::vector<size_t>&, stream_t) override {}
    void broadcast(void*, size_t, int, stream_t) override {}
    std::string failure() override { return problem; }
};

}  // namespace

TEST_CASE("backends: the failure of any communicator is reported until the communicator is destroyed") {
    BackendList list;
    CHECK(list.failure().empty());
    const auto world = std::make_shared<Broken>();
    auto part = std::make_shared<Broken>();
    list.add(world);
    list.add(part);
    CHECK(list.failure().empty());
    part->problem = "NCCL (gradients): remote process exited";
    CHECK(list.failure() == part->problem);
    part.reset();
    CHECK(list.failure().empty());
}

TEST_CASE("backends: a reduction that a back-end lacks is an error") {
    Broken without;
    CHECK_THROWS_WITH_AS(without.reduce_scatter(nullptr, nullptr, 1, nullptr),
                         "this back-end has no reduce_scatter; exchange pieces and sum them", Error);
    CHECK_THROWS_WITH_AS(without.all_reduce(nullptr, 1, ElementType::f32, ReduceOp::sum, nullptr),
                         "this back-end has no all_reduce; gather the values and reduce them", Error);
}

TEST_CASE("nccl: from 2.26 on it keeps the order of several communicators on request") {
    CHECK(nccl_keeps_order(22600, "1"));
    CHECK(nccl_keeps_order(22809, "1"));
    CHECK_FALSE(nccl_keeps_order(22505, "1"));
    CHECK_FALSE(nccl_keeps_order(22005, "1"));
    CHECK_FALSE(nccl_keeps_order(22809, "0"));
    CHECK_FALSE(nccl_keeps_order(22809, nullptr));
}

TEST_CASE("collective chain: collectives on several streams run in the order of the calls") {
    test_stream();
#if !LLMC_CUDA
    const bool lazy = host::settings().lazy_streams;
    host::settings().lazy_streams = true;  // without the chain, streams run only when somebody waits for them
#endif
    constexpr int kStreams = 3, kCalls = 12;
    stream_t streams[kStreams];
    for (stream_t& s : streams) s = create_stream();
    DeviceArray<float> cell(8), seen(8 * kCalls), numbers(8 * kCalls);
    std::vector<float> numbered(8 * kCalls);
    for (size_t i = 0; i < numbered.size(); i++) numbered[i] = static_cast<float>(i / 8);
    numbers.upload(numbered);
    {
        CollectiveChain chain;
        for (int i = 0; i < kCalls; i++) {
            const stream_t stream = streams[i % kStreams];
            chain.before(stream);
            copy_on_device(seen + 8 * i, cell.get(), 8 * sizeof(float), stream);
            copy_on_device(cell.get(), numbers + 8 * i, 8 * sizeof(float), stream);
            chain.after(stream);
        }
        for (int s = 0; s < kStreams; s++) synchronize(streams[s]);
    }
    const std::vector<float> values = seen.download();
    CHECK(std::isnan(values[0]));
    for (size_t i = 1; i < kCalls; i++) CHECK(values[8 * i] == static_cast<float>(i) - 1.0f);
    for (const stream_t s : streams) destroy_stream(s);
#if !LLMC_CUDA
    host::settings().lazy_streams = lazy;
#endif
}

TEST_CASE("watchdog: a stalled rank says where it stands") {
    OperationEntry entry;
    CHECK(std::string(standstill_reason(entry)).find("it is in no collective") == 0);
    entry.sequence = 3;
    entry.state = OperationEntry::State::running;
    CHECK(std::string(standstill_reason(entry)) == "it waits for other ranks in a collective");
    entry.state = OperationEntry::State::issued;
    CHECK(std::string(standstill_reason(entry)).find("its GPU has not reached a collective") == 0);
}
