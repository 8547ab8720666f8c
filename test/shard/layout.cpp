// The table of a model's parameters: offsets, padding and lookups.
#include "llmc/shard/layout.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

using namespace llmc;

namespace {
std::vector<Unit> example() {
    Unit first, second;
    first.name = "first";
    first.tensors = {{"a", {5, 7}, true}, {"b", {3}, false}, {"c", {11}, false}};
    second.name = "second";
    second.tensors = {{"d", {130}, false}};
    return {first, second};
}
}  // namespace

TEST_CASE("parameter table: tensors are aligned, do not overlap, and those with decay come first") {
    for (int world : {1, 2, 3, 7, 8}) {
        const ParameterTable table(example(), world);
        CHECK(table.parameters() == 35 + 3 + 11 + 130);
        size_t end = 0;
        for (const Unit& unit : table.units()) {
            CHECK(unit.begin == end);
            CHECK(unit.count % (64 * static_cast<size_t>(world)) == 0);
            size_t at = 0;
            for (const ParameterTensor& tensor : unit.tensors) {
                CHECK(tensor.offset % 8 == 0);
                CHECK(tensor.offset >= at);
                CHECK((tensor.offset < unit.decay_count) == tensor.decay);
                at = tensor.offset + tensor.count();
            }
            CHECK(at <= unit.count);
            end = unit.begin + unit.count;
        }
        CHECK(end == table.count());
    }
}

TEST_CASE("parameter table: finds tensors by name, refuses unknown ones and wrong order") {
    const ParameterTable table(example(), 1);
    CHECK(table.find("d").unit == 1);
    CHECK(table.find("c").tensor == 2);
    CHECK_THROWS_AS(table.find("e"), Error);
    std::vector<Unit> wrong = example();
    std::swap(wrong[0].tensors[0], wrong[0].tensors[1]);
    CHECK_THROWS_AS(ParameterTable(wrong, 1), Error);
}

TEST_CASE("parameter table: tensors may begin at multiples of more elements") {
    const ParameterTable table(example(), 3, 64);
    for (const Unit& unit : table.units())
        for (const ParameterTensor& tensor : unit.tensors) CHECK(tensor.offset % 64 == 0);
    CHECK(table.unit(0).decay_count == 64);
    CHECK(table.unit(0).tensors[2].offset == 128);
}
