// Gradients on one rank, which keeps and sums everything in place but must obey the rules of ranks that share buffers.
#include "llmc/shard/gradients.h"

#include "test/helpers.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr size_t kUnits = 6;

ParameterTable example_table() {
    std::vector<Unit> units(kUnits);
    for (size_t u = 0; u < kUnits; u++) {
        units[u].name = "unit " + std::to_string(u);
        units[u].tensors = {{"a", {16, 16}, true}, {"b", {20}, false}};
    }
    return ParameterTable(units, 1);
}

}  // namespace

TEST_CASE("gradients can be had between acquire and reduce alone") {
    const ParameterTable table = example_table();
    for (const ReduceOrder order : {ReduceOrder::any, ReduceOrder::rank}) {
        const stream_t stream = test_stream();
        Gradients gradients(ShardLayout(table, Comm::self(order)));
        gradients.allocate(stream);
        const auto gradient = [&](size_t unit) { return [&gradients, unit] { gradients.gradient(unit, 1); }; };
        CHECK(error_of(gradient(2)) ==
              "the gradient of unit 2 was asked for (b), which is not acquired, or has been reduced");
        gradients.acquire(2, stream);
        CHECK_NOTHROW(gradients.gradient(2, 0));
        gradients.acquire(2, stream);  // again: no effect
        gradients.acquire(3, stream);  // in the other slot
        gradients.acquire(0, stream);  // the first and the last unit have their own slots
        gradients.acquire(kUnits - 1, stream);
        for (const size_t unit : {size_t{0}, size_t{2}, size_t{3}, kUnits - 1}) CHECK_NOTHROW(gradient(unit)());

        CHECK(error_of([&] { gradients.acquire(4, stream); }) ==
              "the gradient of unit 4 cannot be acquired: its slot has unit 2's, which has not been reduced");
        CHECK(error_of([&] { gradients.reduce(4, stream); }) ==
              "the gradient of unit 4 cannot be reduced: it is not acquired");
        gradients.reduce(2, stream);
        CHECK(error_of(gradient(2)) != "");
        CHECK_NOTHROW(gradients.acquire(4, stream));
        gradients.finish_reduce(stream);
        synchronize(stream);
    }
}

TEST_CASE("gradients travel on a stream that goes before the computation's") {
    const ParameterTable table = example_table();
    Gradients gradients(ShardLayout(table, Comm::self(ReduceOrder::rank)));
    gradients.allocate(test_stream());
    REQUIRE(gradients.reduce_stream() != stream_t{});
    CHECK(stream_priority(gradients.reduce_stream()) == StreamPriority::communication);
    CHECK(stream_priority(test_stream()) == StreamPriority::normal);
}
