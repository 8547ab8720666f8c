// Which counts of FP8 products a run goes on with.
#include "llmc/log/records.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

using namespace llmc;

TEST_CASE("records: an FP8 run has the FP8 products of its layers, and does not emulate all of them unasked") {
    CHECK_NOTHROW(require_fp8_products({48, 3, 0, 0}, 48, false));
    CHECK_NOTHROW(require_fp8_products({48, 3, 0, 47}, 48, false));  // single ones: said, and counted
    CHECK_NOTHROW(require_fp8_products({48, 3, 0, 48}, 48, true));
    CHECK_NOTHROW(require_fp8_products({0, 51, 0, 0}, 0, false));  // --fp8-layers none
    CHECK_THROWS_WITH_AS(require_fp8_products({47, 4, 0, 0}, 48, true),
                         "a micro-step ran 47 FP8 matmuls instead of the 48 of its FP8 layers", Error);
    CHECK_THROWS_WITH_AS(require_fp8_products({48, 3, 0, 48}, 48, false),
                         doctest::Contains("cuBLASLt refused all 48 FP8 matmuls"), Error);
}
