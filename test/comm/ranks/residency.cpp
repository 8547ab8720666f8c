// In stage 3 ranks keep slices of the weights, and units share slots. Asking for a unit that is not resident is an
// error; it never returns another unit's weights.
#include <string>

#include "llmc/shard/weights.h"
#include "test/comm/ranks/ranks.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kResidentUnits = 7;

ParameterTable table_of_units() {
    std::vector<Unit> units(kResidentUnits);
    for (int u = 0; u < kResidentUnits; u++) {
        units[as_size(u)].name = "unit " + std::to_string(u);
        units[as_size(u)].tensors = {{"a", {16, 16}, true}, {"b", {32}, false}};
    }
    return ParameterTable(units, world().world());
}

std::string error_of_weight(const Weights<float>& weights, size_t unit) {
    return error_of([&] { weights.weight(unit, 1); });
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("weights that left their slot, or were not asked for, cannot be read") {
    const stream_t stream = test_stream();
    const ParameterTable table = table_of_units();
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        Sharding sharding;
        sharding.stage = stage;
        Weights<float> weights(ShardLayout(table, world(), sharding));
        weights.allocate(stream);
        if (world().world() > 1) CHECK(stream_priority(weights.gather_stream()) == StreamPriority::communication);
        for (size_t u = 0; u < kResidentUnits; u++)
            for (size_t t = 0; t < 2; t++)
                weights.set_tensor(u, t, std::vector<float>(table.unit(u).tensors[t].count(), float(u)), stream);
        weights.publish(stream);
        const auto first_value = [&](size_t u) { return read_back(weights.weight(u, 1), 1, stream)[0]; };

        weights.gather(1, stream);  // also brings unit 2
        CHECK(first_value(1) == 1);
        CHECK(error_of_weight(weights, 2).find("weights of unit 2 were asked for (b), which are not gathered") == 0);
        weights.gather(2, stream);  // also brings unit 3, into the slot of unit 1
        CHECK(first_value(2) == 2);
        const std::string taken = error_of_weight(weights, 1);
        if (weights.layout().stage() == 3)
            CHECK(taken ==
                  "weights of unit 1 were asked for (b), which have been replaced since they were gathered; its "
                  "slot has unit 3");
        else
            CHECK(taken == "");
        weights.release(1, stream);
        CHECK(error_of_weight(weights, 1).find("not gathered, or have been released") != std::string::npos);
        weights.release(2, stream);

        weights.gather(0, stream);
        weights.publish(stream);  // makes gathered weights stale
        const std::string old = error_of_weight(weights, 0);
        CHECK((weights.layout().stage() == 3) ==
              (old.find("have been replaced since they were gathered") != std::string::npos));
        weights.release(0, stream);
        weights.gather(0, stream);
        CHECK(first_value(0) == 0);
        weights.release(0, stream);
        synchronize(stream);
    }
}

TEST_SUITE_END();
