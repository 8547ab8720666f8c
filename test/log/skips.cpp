// What is said about skipped steps.
#include "llmc/log/skips.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "llmc/base/error.h"

using namespace llmc;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

StepRecord skipped(double loss, double norm, int bad_tensor = 0, ExceededLimits spike = {}) {
    StepRecord record;
    record.step = 37;
    record.loss = static_cast<float>(loss);
    record.norm = static_cast<float>(norm);
    record.bad_tensor = bad_tensor;
    record.spike = spike;
    record.consecutive_skips = 20;
    return record;
}

}  // namespace

TEST_CASE("skips: the reason is what went wrong first") {
    Fp8Registry fp8({}, Comm::self());
    for (const char* layer : {"h.3.fc", "h.3.fc_proj"}) fp8.add(layer);
    const int x = fp8.find("h.3.fc_proj.x") + 1, dout = fp8.find("h.3.fc_proj.dout") + 1;
    const std::string tensor = "the first FP8 tensor with a value that is not finite was h.3.fc_proj.";
    CHECK(why_skipped(skipped(3.0, kInf, dout), &fp8) == tensor + "dout");
    CHECK(why_skipped(skipped(3.0, 1.0, dout), &fp8) == tensor + "dout");
    CHECK(why_skipped(skipped(NAN, NAN, x), &fp8) == tensor + "x");
    // A loss that is not finite comes before any gradient.
    CHECK(why_skipped(skipped(-NAN, NAN, dout), &fp8) == "the loss was nan");
    CHECK(why_skipped(skipped(kInf, NAN), &fp8) == "the loss was inf");
    CHECK(why_skipped(skipped(3.0, kInf), &fp8) == "the gradient norm was inf");
    CHECK(why_skipped(skipped(3.0, -NAN), &fp8) == "the gradient norm was nan");
    CHECK(why_skipped(skipped(9.0, 1.0, 0, {4.5f, {}}), &fp8) == "the loss was a spike, 9 where 4.5 is the limit");
    CHECK(why_skipped(skipped(9.0, 2.0, 0, {4.5f, 1.25f}), &fp8) == "the loss was a spike, 9 where 4.5 is the limit");
    CHECK(why_skipped(skipped(3.0, 2.0, 0, {{}, 1.25f}), &fp8) ==
          "the gradient norm was a spike, 2 where 1.25 is the limit");
}

TEST_CASE("skips: too many in a row stop the run") {
    const StepRecord result = skipped(NAN, NAN);
    CHECK_NOTHROW(check_skips(result, 0, nullptr));  // any number
    CHECK_NOTHROW(check_skips(result, 21, nullptr));
    for (const int most : {20, 1}) {
        try {
            check_skips(result, most, nullptr);
            FAIL("nothing was thrown");
        } catch (const Error& error) {
            CHECK(error.code() == ExitCode::bad_numbers);
            CHECK(std::string(error.what()) ==
                  "20 steps skipped in a row; in the last, step 37, the loss was nan; lower -l, or see --max-skips");
        }
    }
    StepRecord fine = result;
    fine.consecutive_skips = 0;
    CHECK_NOTHROW(check_skips(fine, 1, nullptr));
}
