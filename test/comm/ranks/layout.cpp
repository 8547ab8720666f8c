// Each rank's share of the units, in every stage and in groups of any size.
#include "llmc/shard/layout.h"

#include <algorithm>

#include "test/comm/ranks/ranks.h"

using namespace llmc;
using namespace llmc::test;

TEST_SUITE_BEGIN("training");

TEST_CASE("the shares of all ranks are the unit, and each lies in its rank's slice") {
    std::vector<Unit> units(3);
    units[0].tensors = {{"a", {5, 7}, true}, {"b", {3}, false}};
    units[1].tensors = {{"c", {101, 9}, true}};
    units[2].tensors = {{"d", {1}, false}};
    const ParameterTable table(units, world().world());
    for (int stage = 0; stage <= 3; stage++)
        for (int within = 0; within <= world().world(); within++) {
            if (within > 0 && (stage == 0 || world().world() % within != 0)) continue;
            CAPTURE(stage);
            CAPTURE(within);
            Sharding sharding;
            sharding.stage = stage, sharding.within = within;
            const ShardLayout layout(table, world(), sharding);
            for (size_t u = 0; u < layout.units(); u++) {
                const ShardLayout::Part share = layout.share(u), slice = layout.slice(u), summed = layout.summed(u);
                for (const ShardLayout::Part& around : {slice, summed}) {
                    CHECK(share.begin >= around.begin);
                    CHECK(share.end() <= around.end());
                }
                std::vector<ShardLayout::Part> all(as_size(world().world()));
                world().host_all_gather(all.data(), &share, sizeof share);
                std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
                size_t at = 0;
                for (const ShardLayout::Part& part : all) {
                    CHECK(part.begin == at);
                    CHECK(part.count > 0);
                    at = part.end();
                }
                CHECK(at == table.unit(u).count);
            }
        }
}

TEST_SUITE_END();
