// NCCL on one GPU: the library is found, and a communicator of one rank makes every call with the arguments that
// several ranks use. Needs a GPU; skipped if there is no libnccl.
#include <cstring>
#include <memory>

#include "llmc/comm/backend.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

class OneRank : public Transport {
public:
    const char* name() const override { return "one rank"; }
    int rank() const override { return 0; }
    int world() const override { return 1; }
    void all_gather(void* out, const void* in, size_t bytes) override { std::memcpy(out, in, bytes); }
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in,
                      const std::vector<size_t>&) override {
        std::memcpy(out, in, receive[0]);
    }
    void broadcast(void*, size_t, int) override {}
    void barrier() override {}
    std::shared_ptr<Transport> split(int) override { return std::make_shared<OneRank>(); }
    void finish() override {}
};

template <class T>
void check_all_reduce(Backend& nccl, ElementType type) {
    const std::vector<T> values = {1, 2, 3};
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        DeviceArray<T> data(values);
        nccl.all_reduce(data.get(), values.size(), type, op, test_stream());
        CHECK(data.download() == values);
    }
}

}  // namespace

TEST_CASE("nccl: a communicator of one rank copies, with every call" * doctest::skip(!built_with_nccl())) {
    OneRank transport;
    const auto process = std::make_shared<CommProcess>();
    std::unique_ptr<Backend> nccl;
    try {
        nccl = make_nccl_backend(transport, process, "test");
    } catch (const Error& error) {
        if (error.code() != ExitCode::no_resources) throw;
        MESSAGE(error.what());
        return;
    }
    const std::vector<float> values = random_normal<float>(1001, 1.0f, 1);
    const size_t bytes = values.size() * sizeof(float);
    DeviceArray<float> in(values), gathered(values.size()), exchanged(values.size()), sum(values.size());
    nccl->begin_group();
    nccl->all_gather(gathered.get(), in.get(), bytes, "all_gather", test_stream());
    nccl->broadcast(in.get(), bytes, 0, test_stream());
    nccl->end_group();
    nccl->all_to_all_v(exchanged.get(), {bytes}, in.get(), {bytes}, "all_to_all_v", test_stream());
    nccl->reduce_scatter(sum.get(), in.get(), values.size(), test_stream());
    for (const DeviceArray<float>* result : {&in, &gathered, &exchanged, &sum}) CHECK(result->download() == values);
    nccl->all_gather(in.get(), in.get(), bytes, "all_gather", test_stream());  // in place, as stages 1 and 2 gather
    CHECK(in.download() == values);
    check_all_reduce<float>(*nccl, ElementType::f32);
    check_all_reduce<double>(*nccl, ElementType::f64);
    check_all_reduce<int32_t>(*nccl, ElementType::i32);
    CHECK(nccl->failure().empty());
    synchronize(test_stream());
    process->log->look();
    CHECK(process->log->unfinished().sequence == 0);
    CHECK(process->log->last().state == OperationEntry::State::done);
}
