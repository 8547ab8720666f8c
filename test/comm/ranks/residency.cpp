// Where ranks keep slices of the weights (stage 3), units take turns in slots: asking for one that is not there is an
// error, not another unit's weights.
#include <string>

#include "llmc/shard/parameters.h"
#include "test/comm/ranks/ranks.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kUnits = 7;

ParameterTable table_of_units() {
    std::vector<Unit> units(kUnits);
    for (int u = 0; u < kUnits; u++) {
        units[as_size(u)].name = "unit " + std::to_string(u);
        units[as_size(u)].tensors = {{"a", {16, 16}, true}, {"b", {32}, false}};
    }
    return ParameterTable(units, world().world());
}

std::string error_of_weight(const Parameters<float>& parameters, size_t unit) {
    try {
        parameters.weight(unit, 1);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("weights that have left their slot, or came without being asked for, cannot be read") {
    const stream_t stream = test_stream();
    const ParameterTable table = table_of_units();
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        Sharding sharding;
        sharding.stage = stage;
        Parameters<float> parameters(table, world(), sharding);
        parameters.allocate(stream);
        for (size_t u = 0; u < kUnits; u++)
            for (size_t t = 0; t < 2; t++)
                parameters.set_tensor(u, t, std::vector<float>(table.unit(u).tensors[t].count(), float(u)), stream);
        parameters.publish(stream);
        const auto first_value = [&](size_t u) { return read_back(parameters.weight(u, 1), 1, stream)[0]; };

        parameters.gather(1, stream);  // which brings unit 2 along
        CHECK(first_value(1) == 1);
        CHECK(error_of_weight(parameters, 2).find("weights of unit 2 were asked for (b), which are not gathered") == 0);
        parameters.gather(2, stream);  // which brings unit 3 along, where unit 1 was
        CHECK(first_value(2) == 2);
        const std::string taken = error_of_weight(parameters, 1);
        if (parameters.stage() == 3)
            CHECK(taken ==
                  "weights of unit 1 were asked for (b), which have been replaced since they were gathered; its "
                  "slot has unit 3");
        else
            CHECK(taken == "");
        parameters.release(1, stream);
        CHECK(error_of_weight(parameters, 1).find("not gathered, or have been released") != std::string::npos);
        parameters.release(2, stream);

        parameters.gather(0, stream);
        parameters.publish(stream);  // what was gathered is old now
        const std::string old = error_of_weight(parameters, 0);
        CHECK((parameters.stage() == 3) ==
              (old.find("have been replaced since they were gathered") != std::string::npos));
        parameters.release(0, stream);
        parameters.gather(0, stream);
        CHECK(first_value(0) == 0);
        parameters.release(0, stream);
        synchronize(stream);
    }
}

TEST_SUITE_END();
