// The consequences of validation losses: PyTorch's ReduceLROnPlateau and an early end, worked out by hand.
#include "llmc/log/validation_watch.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/log/metrics.h"
#include "test/helpers.h"
#include "test/log/example_record.h"

using namespace llmc;
using nlohmann::ordered_json;

using Verdict = ValidationWatch::Verdict;

namespace {

constexpr Verdict none = Verdict::none, lower = Verdict::lower_rate, stop = Verdict::stop;

std::vector<Verdict> verdicts(ValidationWatch& watch, const std::vector<double>& losses, const char* rule,
                              int64_t early_stop = 0) {
    std::vector<Verdict> all;
    for (const double loss : losses) all.push_back(watch.observe(loss, plateau_from_text(rule), early_stop));
    return all;
}

}  // namespace

TEST_CASE("plateau: the rate falls after more than `patience` losses that are no better, and again after as many") {
    ValidationWatch watch;
    CHECK(verdicts(watch, {5, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3}, "0.5,2") ==
          std::vector{none, none, none, none, lower, none, none, none, none, none, lower});
    CHECK(watch.rate_factor() == 0.25);
    // A patience of 0 acts at once.
    ValidationWatch hasty;
    CHECK(verdicts(hasty, {5, 5, 4, 5}, "0.1,0") == std::vector{none, lower, none, lower});
    CHECK(hasty.rate_factor() == doctest::Approx(0.01).epsilon(1e-12));
}

TEST_CASE("plateau: a better loss is finite and lower by one part in ten thousand") {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    ValidationWatch watch;
    CHECK(verdicts(watch, {4, 3.9997, 3.9995, kNan, 3.9992, -std::numeric_limits<double>::infinity()}, "0.5,0") ==
          std::vector{none, lower, none, lower, lower, lower});
    ValidationWatch first;
    CHECK(verdicts(first, {kNan, 3, 3}, "0.5,1") == std::vector{none, none, none});
}

TEST_CASE("early stop: counts validations since the best loss, also if the rate changed") {
    ValidationWatch watch;
    CHECK(verdicts(watch, {4, 4, 4, 4, 4}, "0.5,1", 3) == std::vector{none, none, lower, none, stop});
    CHECK(watch.since_best() == 4);
    CHECK(watch.is_over(3));
    CHECK(!watch.is_over(4));
    CHECK(!watch.is_over(0));
    CHECK(verdicts(watch, {3, 3}, "off", 3) == std::vector{none, none});
    ValidationWatch off;
    CHECK(verdicts(off, std::vector<double>(100, 4), "off") == std::vector(100, none));
    CHECK(off.rate_factor() == 1);
}

TEST_CASE("validation watch: continues from a checkpoint") {
    const std::vector<double> losses = {5, 4, 4, 4, 3, 3, 3, 3, 3, 3};
    for (size_t at = 0; at <= losses.size(); at++) {
        ValidationWatch whole, begun;
        const auto split = losses.begin() + static_cast<long>(at);
        const std::vector<Verdict> expected = verdicts(whole, losses, "0.5,1", 5);
        std::vector<Verdict> seen = verdicts(begun, {losses.begin(), split}, "0.5,1", 5);
        ValidationWatch rest = ValidationWatch::from_json(parse_json(json_text(begun.to_json())));
        for (const Verdict verdict : verdicts(rest, {split, losses.end()}, "0.5,1", 5)) seen.push_back(verdict);
        CHECK(seen == expected);
        CHECK(rest.to_json() == whole.to_json());
    }
}

TEST_CASE("plateau: invalid rules are refused") {
    CHECK(plateau_from_text("off") == PlateauRule{});
    CHECK(plateau_from_text("0.5,3") == PlateauRule{0.5, 3});
    for (const char* text : {"", "on", "0.5", "0.5,", "1,3", "0,3", "-0.5,3", "0.5,-1", "0.5,3x", "nan,3"}) {
        CAPTURE(text);
        CHECK(contains(error_of([&] { plateau_from_text(text); }), "as in 0.5,3"));
    }
}
