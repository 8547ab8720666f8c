// Weights from a source: non-finite values are refused, with their place.
#include "llmc/checkpoint/weight_source.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("finite: the error names the first non-finite value and its place") {
    const auto refusal = [](std::vector<int64_t> shape, std::vector<std::pair<size_t, float>> bad) {
        std::vector<float> values(24, std::numeric_limits<float>::max());
        for (const auto& [at, value] : bad) values[at] = value;
        return checkpoint_error([&] { require_finite("file", "h.3.fc.weight", shape, values); });
    };
    const float inf = std::numeric_limits<float>::infinity();
    CHECK(refusal({4, 6}, {}) == "");
    CHECK(contains(refusal({4, 6}, {{0, NAN}}), "file: h.3.fc.weight has NaN at row 0, column 0;"));
    CHECK(contains(refusal({4, 6}, {{20, -NAN}, {17, inf}, {23, NAN}}), "has Inf at row 2, column 5;"));
    CHECK(contains(refusal({4, 6}, {{23, -inf}}), "has -Inf at row 3, column 5;"));
    CHECK(contains(refusal({24}, {{7, NAN}}), "has NaN at element 7;"));
    CHECK(contains(refusal({2, 3, 4}, {{13, NAN}}), "has NaN at row 1, column 1;"));
}
