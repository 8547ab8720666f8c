// The ranges of a unit that the optimizer updates: together they cover the unit, each with its own decay and FP8 state.
#include "llmc/shard/weights.h"

#include "test/helpers.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

ParameterTable units_table(int units = 2) {
    Unit unit;
    unit.tensors = {{"a", {16, 16}, true}, {"b", {32, 16}, true}, {"c", {16, 32}, true}, {"d", {20}, false}};
    std::vector<Unit> all;
    for (int u = 0; u < units; u++) {
        unit.name = "unit " + std::to_string(u);
        all.push_back(unit);
    }
    return ParameterTable(all, 1);
}

}  // namespace

TEST_CASE("a unit without FP8 is one range") {
    const ParameterTable table = units_table();
    const Weights<bf16> weights{ShardLayout(table, Comm::self())};
    for (size_t u = 0; u < 2; u++) {
        REQUIRE(weights.ranges(u).size() == 1);
        const auto& range = weights.ranges(u)[0];
        CHECK(range.begin == 0);
        CHECK(range.count == table.unit(u).count);
        CHECK(range.decay_count == table.unit(u).decay_count);
        CHECK(range.fp8 == nullptr);
    }
}

TEST_CASE("each tensor in FP8 is a range, and so is what lies between two of them") {
    const ParameterTable table = units_table();
    const size_t count = table.unit(0).count, decayed = table.unit(0).decay_count;
    Fp8State states[3] = {};
    for (int mask = 0; mask < 8; mask++) {
        CAPTURE(mask);
        Weights<bf16> weights{ShardLayout(table, Comm::self())};
        for (size_t t = 0; t < 3; t++)
            if (mask >> t & 1) weights.keep_in_fp8(0, t, &states[t]);
        size_t at = 0, decay = 0;
        for (const auto& range : weights.ranges(0)) {
            CHECK(range.begin == at);
            CHECK(range.count > 0);
            CHECK(range.begin % 16 == 0);  // slices begin at a multiple of 16 bytes
            at += range.count, decay += range.decay_count;
        }
        CHECK(at == count);
        CHECK(decay == decayed);
        for (size_t t = 0; t < 4; t++) {
            Fp8State* expected = t < 3 && (mask >> t & 1) ? &states[t] : nullptr;
            const size_t begin = table.unit(0).tensors[t].offset, end = begin + table.unit(0).tensors[t].count();
            for (const auto& range : weights.ranges(0)) {
                if (range.begin >= end || range.begin + range.count <= begin) continue;
                CHECK(range.fp8 == expected);
            }
        }
        CHECK(weights.ranges(1).size() == 1);
    }
}

TEST_CASE("weights are measured at the start and after they were set") {
    const ParameterTable table = units_table();
    Weights<bf16> weights{ShardLayout(table, Comm::self())};
    weights.allocate(test_stream());
    Fp8State state{};
    CHECK(weights.to_be_measured());
    weights.keep_in_fp8(0, 1, &state);
    weights.set_measured();
    weights.keep_in_fp8(0, 1, &state);  // no effect
    CHECK(!weights.to_be_measured());
    weights.set_tensor(0, 0, std::vector<float>(256), test_stream());  // not in FP8
    CHECK(!weights.to_be_measured());
    weights.set_tensor(0, 1, std::vector<float>(512), test_stream());
    CHECK(weights.to_be_measured());
    weights.set_measured();
    weights.keep_in_fp8(0, 0, &state);
    CHECK(weights.to_be_measured());
}

// One rank keeps everything and could answer all of these; stage 3 could not, so none may.
TEST_CASE("weights can only be used between gather and release") {
    const stream_t stream = test_stream();
    const ParameterTable table = units_table(6);
    Weights<bf16> weights{ShardLayout(table, Comm::self())};
    weights.allocate(stream);
    const auto weight = [&](size_t unit) { return [&weights, unit] { weights.weight(unit, 1); }; };
    CHECK(error_of(weight(2)) ==
          "weights of unit 2 were asked for (b), which are not gathered, or have been released; its slot has nothing");
    weights.gather(2, stream);
    CHECK_NOTHROW(weights.weight(2, 1));
    CHECK_NOTHROW(weights.weight(2, 3));
    weights.gather(2, stream);  // again: no effect
    weights.gather(3, stream);  // in the other slot
    weights.gather(0, stream);  // the first and the last unit have their own slots
    weights.gather(5, stream);
    for (const size_t unit : {0, 2, 3, 5}) CHECK_NOTHROW(weights.weight(unit, 1));

    CHECK(error_of(weight(4)) ==
          "weights of unit 4 were asked for (b), which are not gathered, or have been released; its slot has unit 2");
    CHECK(error_of([&] { weights.fp8_weight(4, 0); }).find("weights of unit 4 were asked for (a)") == 0);
    CHECK(error_of([&] { weights.gather(4, stream); }) ==
          "unit 4 cannot be gathered: its slot has unit 2, which has not been released");
    CHECK(error_of([&] { weights.release(4, stream); }) == "unit 4 cannot be released: its slot has unit 2");
    weights.release(2, stream);
    CHECK(error_of(weight(2)).find("weights of unit 2 were asked for (b)") == 0);
    CHECK(error_of([&] { weights.release(2, stream); }) == "unit 2 cannot be released: its slot has nothing");
    weights.gather(4, stream);
    CHECK_NOTHROW(weights.weight(4, 1));
    CHECK_NOTHROW(weights.weight(3, 1));
}
