// Gradients on one rank, which keeps and sums everything in place but must obey the rules of ranks that share buffers.
#include "llmc/shard/gradients.h"

#include <cmath>

#include "llmc/device/transfer.h"
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

TEST_CASE("gradients can only be used between acquire and reduce") {
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

TEST_CASE("gradients in BF16: the sums of micro-steps, and their size") {
    const ParameterTable table = example_table();
    const stream_t stream = test_stream();
    const Sharding narrow{.gradients = StateFormat::bf16};
    Gradients gradients(ShardLayout(table, Comm::self(), narrow)), other(ShardLayout(table, Comm::self(), narrow));
    for (Gradients* g : {&gradients, &other}) {
        g->allocate(stream);
        g->begin_step(g == &other ? 8 : 7);
        for (int micro_step = 0; micro_step < 3; micro_step++) {
            g->begin_micro_step(micro_step == 0, micro_step == 2);
            for (size_t u = 0; u < kUnits; u++) {
                g->acquire(u, stream);
                const std::vector<float> ones(16 * 16, 1.0f + 0.001f * static_cast<float>(micro_step));
                write_through(g->gradient(u, 0), ones.data(), ones.size(), stream);
                g->reduce(u, stream);
            }
        }
        g->finish_reduce(stream);
    }
    double sum = 0;
    for (size_t u = 0; u < kUnits; u++) {
        CHECK(gradients.slice(u).format == StateFormat::bf16);
        for (const float value : gradients.get_gradient(u, 0, stream)) {
            CHECK((value >= 3.0f && value <= 3.0f + 2.0f / 64));  // neighbours of 2.001 and of the sum
            sum += static_cast<double>(value) / (kUnits * 16 * 16);
        }
    }
    CHECK(std::fabs(sum - 3.003) < 6 * (1.0 / 64) / std::sqrt(kUnits * 16.0 * 16));
    CHECK(gradients.get_gradient(1, 0, stream) != gradients.get_gradient(2, 0, stream));  // bits belong to the unit
    CHECK(gradients.get_gradient(1, 0, stream) != other.get_gradient(1, 0, stream));      // and to the step
    Gradients wide{ShardLayout(table, Comm::self())};
    const size_t whole = table.count(), slots = 4 * table.unit(0).count;
    CHECK(wide.bytes() >= 4 * whole);
    CHECK(gradients.bytes() < 2 * whole + 4 * slots + 8 * device_alignment());
}
