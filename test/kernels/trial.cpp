// Comparisons of specifications: each finds the errors that it is for, and names the first wrong element.
#include "test/kernels/specifications/trial.h"

#include <doctest/doctest.h>

#include <cmath>

#include "test/kernels/specifications/reference.h"

using namespace llmc;

namespace {

const ArrayShape kGradient{"dqkv", {{"b", 2}, {"t", 149}, {"part", 3}, {"h", 2}, {"", 32}}};

// The index of dqkv[b=1,t=70,part=0,h=0,17].
constexpr size_t kIndex = ((size_t{1} * 149 + 70) * 3 * 2 + 0) * 32 + 17;

}  // namespace

TEST_CASE("a place is named by all its axes") {
    CHECK(kGradient.count() == 57216);
    CHECK(kGradient.place(kIndex) == "dqkv[b=1,t=70,part=0,h=0,17]");
    CHECK(kGradient.place(57215) == "dqkv[b=1,t=148,part=2,h=1,31]");
    CHECK(ArrayShape{"state", {{"", 1}}}.place(0) == "state[0]");
}

TEST_CASE("numbers within bounds, and the first that is not") {
    const auto values = reference::to_doubles(reference::random_normal<float>(kGradient.count(), 1.0f, 1, 3.0f));
    const Bounded expected(values, 0.005, 0.0);
    CHECK(not_within(kGradient, values, expected) == "");
    auto wrong = values;
    wrong[kIndex] *= 1.01;
    CHECK(not_within(kGradient, wrong, expected).substr(0, 32) == "dqkv[b=1,t=70,part=0,h=0,17] is ");
    CHECK(not_within(kGradient, wrong, expected).find("(1 of 57216 wrong)") != std::string::npos);
    wrong = values;
    for (size_t i = kIndex; i < kIndex + 12; i++) wrong[i] = std::nan("");  // left out
    const std::string message = not_within(kGradient, wrong, expected);
    CHECK(message.find("17] is nan, expected ") != std::string::npos);
    CHECK(message.find("(12 of 57216 wrong)") != std::string::npos);

    const ArrayShape row{"x", {{"", 2}}};
    Bounded bounded(0);
    bounded.push_back(0.0521, 0.0004), bounded.push_back(std::nan(""), 0);
    CHECK(not_within(row, {0.0524, std::nan("")}, bounded) == "");
    CHECK(not_within(row, {0.0312, 1.0}, bounded) == "x[0] is 0.0312, expected 0.0521 within 0.0004 (2 of 2 wrong)");
    CHECK(not_within(row, {0.0521, 1.0}, bounded) == "x[1] is 1, expected nan within 0 (1 of 2 wrong)");
    CHECK(not_within(row, {0.0521}, bounded) == "x has 1 elements, expected 2");
    CHECK(not_within(row, {INFINITY, std::nan("")}, bounded) != "");
}

TEST_CASE("errors that are small in every element are not small together") {
    const auto values = reference::to_doubles(reference::random_normal<float>(10000, 1.0f, 2));
    auto off = values;
    for (size_t i = 0; i < 2000; i++) off[i] *= 1.01;
    CHECK(norm_not_within({"out", {}}, values, values, 0.002) == "");
    CHECK(norm_not_within({"out", {}}, off, values, 0.002).find("out is off by 0.00") == 0);
    off[7] = std::nan("");
    CHECK(norm_not_within({"out", {}}, off, values, 0.002) != "");
}

TEST_CASE("equal bits") {
    const ArrayShape shape{"row", {{"n", 2}, {"", 2}}};
    const std::vector<e4m3> codes = {{0x7f}, {0x80}, {0}, {0x38}};
    CHECK(not_equal(shape, codes, codes) == "");
    auto finite = codes;
    finite[0].bits = 0x7e;  // a NaN made finite
    CHECK(not_equal(shape, finite, codes) == "row[n=0,0] is code 7e, expected code 7f (1 of 4 wrong)");
    auto unsigned_zero = codes;
    unsigned_zero[1].bits = 0;
    CHECK(not_equal(shape, unsigned_zero, codes) == "row[n=0,1] is code 00, expected code 80 (1 of 4 wrong)");
    CHECK(not_equal(shape, std::vector<float>{0, 0, 0, -0.0f}, std::vector<float>(4)) ==
          "row[n=1,1] is -0 (bits 80000000), expected 0 (bits 00000000) (1 of 4 wrong)");
    CHECK(not_equal(shape, std::vector<bf16>{{1}}, std::vector<bf16>(4)) == "row has 1 elements, expected 4");
    const std::vector<char> first(8, 1);
    auto second = first;
    CHECK(not_repeated(shape, first, second) == "");
    second[7] = 2;
    CHECK(not_repeated(shape, first, second) ==
          "row[n=1,1] differs between two runs on the same inputs (1 of 4 wrong)");
}

TEST_CASE("codes of values that are known exactly: one code each, and one state") {
    const std::vector<float> values = {1.0f, 1.0625f, std::nanf(""), INFINITY, -500.0f, 1e-9f, -0.0f, 0.0f};
    const CodeRanges<e4m3> expected(Bounded::exactly(values), 1.0f);
    const ArrayShape shape{"codes", {{"", values.size()}}};
    const std::vector<e4m3> right = {{0x38}, {0x38}, {0x7f}, {0x7e}, {0xfe}, {0x00}, {0x80}, {0x00}};
    CHECK(expected.wrong_codes(shape, right) == "");
    for (size_t i = 0; i < right.size(); i++) {
        CAPTURE(i);
        auto codes = right;
        codes[i].bits ^= i == 6 ? 0x80 : 1;
        CHECK(expected.wrong_codes(shape, codes).find(shape.place(i) + " is code ") == 0);
    }
    const Fp8State before = reference::used_state(1.0f);
    const StateRange after = expected.after(before, {QuantizePass::train_counted});
    Fp8State state = before;
    state.amax = 500.0f, state.bad = 1;
    state.elements += 8, state.saturated += 2, state.underflowed += 1, state.nonfinite += 2;
    CHECK(wrong_state(state, after) == "");
    CHECK(wrong_state(before, after).find("state.amax is 0.0078125, expected 500 to 500") == 0);
    auto lie = state;
    lie.underflowed++;
    CHECK(wrong_state(lie, after) == "state.underflowed is 10009, expected 10008 to 10008");
    lie = state;
    lie.bad = 0;
    CHECK(wrong_state(lie, after) == "state.bad is 0, expected 1 to 1");
    lie = state;
    lie.amax = std::nanf("");
    CHECK(wrong_state(lie, after) != "");
    lie = state;
    lie.scale_inv *= 2;
    CHECK(wrong_state(lie, after) == "state: the scale or a reserved field was changed");
}

TEST_CASE("codes of values that are known up to bounds: the ends' codes and all between") {
    Bounded values(0);
    values.push_back(1.0624, 0.001);  // at the tie between 1 and 1.125
    values.push_back(1.0, 0.001);
    values.push_back(448.0, 20.0);    // may saturate
    values.push_back(0.001, 0.0005);  // may underflow: half of 2^-9 is the tie
    values.push_back(-0.0001, 0.0002);
    const CodeRanges<e4m3> expected(values, 1.0f);
    const ArrayShape shape{"codes", {{"", 5}}};
    for (const uint8_t first : {0x38, 0x39})
        for (const uint8_t last : {0x00, 0x80})
            CHECK(expected.wrong_codes(shape, {{first}, {0x38}, {0x7e}, {0x01}, {last}}) == "");
    CHECK(expected.wrong_codes(shape, {{0x3a}, {0x38}, {0x7e}, {0x01}, {0}}) ==
          "codes[0] is code 3a, expected 38 to 39 (1 of 5 wrong)");
    CHECK(expected.wrong_codes(shape, {{0x38}, {0x39}, {0x7e}, {0x01}, {0}}) ==
          "codes[1] is code 39, expected 38 (1 of 5 wrong)");
    CHECK(expected.wrong_codes(shape, {{0x38}, {0x38}, {0x7f}, {0x01}, {0}}) != "");
    CHECK(expected.wrong_codes(shape, {{0xb8}, {0x38}, {0x7e}, {0x01}, {0}}) != "");
    const StateRange after = expected.after(Fp8State{}, {QuantizePass::train_counted});
    CHECK(after.least.saturated == 0);
    CHECK(after.most.saturated == 1);
    CHECK(after.least.underflowed == 0);
    CHECK(after.most.underflowed == 2);
    CHECK(after.least.amax == 428.0f);
    CHECK(after.most.amax == 468.0f);
}

TEST_CASE("the definitions that casts are held to") {
    CHECK(reference::nearest_bf16(1.00390625).bits == 0x3f80);  // a tie: to even
    CHECK(reference::nearest_bf16(1.01171875).bits == 0x3f82);
    CHECK(reference::nearest_bf16(-0.0).bits == 0x8000);
    CHECK(reference::nearest_bf16(3.3961775292304957e38).bits == 0x7f80);  // the tie above the largest
    CHECK(reference::nearest_bf16(-INFINITY).bits == 0xff80);
    CHECK(reference::nearest_bf16(std::nan("")).bits == 0x7fff);
    CHECK(reference::nearest_bf16(0x1p-134).bits == 0);  // half of the smallest: to even
    CHECK(reference::nearest_bf16(0x1.1p-134).bits == 1);
    CHECK(reference::value_of<e4m3>(0x7e) == 448.0);
    CHECK(reference::value_of<e4m3>(0x81) == -0x1p-9);
    CHECK(std::isnan(reference::value_of<e4m3>(0x7f)));
    CHECK(reference::value_of<e5m2>(0x7b) == 57344.0);
    CHECK(reference::value_of<e5m2>(0xfc) == -INFINITY);
    CHECK(std::isnan(reference::value_of<e5m2>(0x7d)));
    CHECK(reference::value_of<e5m2>(1) == 0x1p-16);
}
