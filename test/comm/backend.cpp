// Several communicators of a process: their failures, and collectives that a back-end lacks.
// build: per device
#include "llmc/comm/backend.h"

#include <doctest/doctest.h>

#include "llmc/comm/watchdog.h"

using namespace llmc;

namespace {

class Broken final : public Backend {
public:
    std::string problem;
    void all_gather(void*, const void*, size_t, const char*, stream_t) override {}
    void all_to_all_v(void*, const std::vector<size_t>&, const void*, const std::vector<size_t>&, const char*,
                      stream_t) override {}
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

TEST_CASE("watchdog: a stalled rank says where it stands") {
    OperationEntry entry;
    CHECK(std::string(standstill_reason(entry)).find("it is in no collective") == 0);
    entry.sequence = 3;
    entry.state = OperationEntry::State::running;
    CHECK(std::string(standstill_reason(entry)) == "it waits for other ranks in a collective");
    entry.state = OperationEntry::State::issued;
    CHECK(std::string(standstill_reason(entry)).find("its GPU has not reached a collective") == 0);
}
