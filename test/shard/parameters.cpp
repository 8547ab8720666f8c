// The ranges of a unit that the optimizer updates: together they are the unit, each with its own decay and FP8 state.
#include "llmc/shard/parameters.h"

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

ParameterTable example_table() {
    Unit unit;
    unit.name = "unit";
    unit.tensors = {{"a", {16, 16}, true}, {"b", {32, 16}, true}, {"c", {16, 32}, true}, {"d", {20}, false}};
    return ParameterTable({unit, unit}, 1);
}

}  // namespace

TEST_CASE("a unit without FP8 is one range") {
    const ParameterTable table = example_table();
    const Parameters<bf16> parameters(table, Comm::self());
    for (size_t u = 0; u < 2; u++) {
        REQUIRE(parameters.ranges(u).size() == 1);
        const auto& range = parameters.ranges(u)[0];
        CHECK(range.begin == 0);
        CHECK(range.count == table.unit(u).count);
        CHECK(range.decay_count == table.unit(u).decay_count);
        CHECK(range.fp8 == nullptr);
    }
}

TEST_CASE("tensors in FP8 are ranges of their own, the rest lies between them") {
    const ParameterTable table = example_table();
    const size_t count = table.unit(0).count, decayed = table.unit(0).decay_count;
    Fp8State states[3] = {};
    for (int mask = 0; mask < 8; mask++) {
        CAPTURE(mask);
        Parameters<bf16> parameters(table, Comm::self());
        for (size_t t = 0; t < 3; t++)
            if (mask >> t & 1) parameters.keep_in_fp8(0, t, &states[t]);
        size_t at = 0, decay = 0;
        for (const auto& range : parameters.ranges(0)) {
            CHECK(range.begin == at);
            CHECK(range.count > 0);
            CHECK(range.begin % 16 == 0);  // so that slices begin at 16 bytes
            at += range.count, decay += range.decay_count;
        }
        CHECK(at == count);
        CHECK(decay == decayed);
        for (size_t t = 0; t < 4; t++) {
            Fp8State* expected = t < 3 && (mask >> t & 1) ? &states[t] : nullptr;
            const size_t begin = table.unit(0).tensors[t].offset, end = begin + table.unit(0).tensors[t].count();
            for (const auto& range : parameters.ranges(0)) {
                if (range.begin >= end || range.begin + range.count <= begin) continue;
                CHECK(range.fp8 == expected);
            }
        }
        CHECK(parameters.ranges(1).size() == 1);
    }
}

TEST_CASE("weights are measured at the start and when they were set") {
    const ParameterTable table = example_table();
    Parameters<bf16> parameters(table, Comm::self());
    parameters.allocate(test_stream());
    Fp8State state{};
    CHECK(parameters.to_be_measured());
    parameters.keep_in_fp8(0, 1, &state);
    parameters.set_measured();
    parameters.keep_in_fp8(0, 1, &state);  // nothing new
    CHECK(!parameters.to_be_measured());
    parameters.set_tensor(0, 0, std::vector<float>(256), test_stream());  // not in FP8
    CHECK(!parameters.to_be_measured());
    parameters.set_tensor(0, 1, std::vector<float>(512), test_stream());
    CHECK(parameters.to_be_measured());
    parameters.set_measured();
    parameters.keep_in_fp8(0, 0, &state);
    CHECK(parameters.to_be_measured());
}
