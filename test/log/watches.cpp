// Rules of --alert: how they are read, and the steps in which they begin to hold. The consequences of validation
// losses: PyTorch's ReduceLROnPlateau and an early end, worked out by hand.
#include "llmc/log/watches.h"

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

namespace {

std::string refusal(const std::string& text) {
    return test::error_of([&] { alert_rules(text); });
}

// The steps, from 1, in which the rule begins to hold when "loss" has these values.
std::vector<int> begins(const std::string& rule, const std::vector<double>& losses) {
    Alerts alerts(alert_rules(rule));
    std::vector<int> steps;
    for (size_t i = 0; i < losses.size(); i++) {
        ordered_json record{{"step", i + 1}};
        put_number(record, "loss", losses[i]);
        for (const Alerts::Alert& alert : alerts.observe(record)) {
            CHECK(alert.rule == rule);
            CHECK((alert.value == losses[i] || std::isnan(losses[i])));
            steps.push_back(static_cast<int>(i + 1));
        }
    }
    return steps;
}

}  // namespace

TEST_CASE("alerts: a list of rules") {
    CHECK(alert_rules("off").empty());
    const std::vector<AlertRule> rules = alert_rules("loss>8, tokens_per_s < 1e5 for 20");
    REQUIRE(rules.size() == 2);
    CHECK(rules[0].text == "loss>8");
    CHECK(rules[0].field == "loss");
    CHECK(rules[0].above);
    CHECK(rules[0].limit == 8);
    CHECK(rules[0].steps == 1);
    CHECK(rules[1].text == "tokens_per_s < 1e5 for 20");
    CHECK(rules[1].field == "tokens_per_s");
    CHECK_FALSE(rules[1].above);
    CHECK(rules[1].limit == 1e5);
    CHECK(rules[1].steps == 20);
    CHECK(alert_rules("loss>-0.5")[0].limit == -0.5);
}

TEST_CASE("alerts: invalid rules are refused") {
    CHECK(refusal("grad_norm>10")
              .starts_with("'grad_norm>10' is a rule over 'grad_norm', which is not one of loss, lr, "));
    for (const char* text :
         {"", "loss", "loss>8,", "loss=8", ">8", "loss>", "loss>>8", "loss>x", "loss>nan", "loss>inf", "loss>8 for",
          "loss>8 for 0", "loss>8 for -1", "loss>8 for 1.5", "loss>8 for 2 for 3", "loss>8 for 2x", "for 3>2"}) {
        CAPTURE(text);
        CHECK(refusal(text) != "");
    }
}

TEST_CASE("alerts: once when a rule begins to hold, and again when it begins again") {
    CHECK(begins("loss>8", {9, 9, 8, 7, 9, 10}) == std::vector{1, 5});
    CHECK(begins("loss<8", {9, 8, 7, 7, 9, 1}) == std::vector{3, 6});
    CHECK(begins("loss>8 for 3", {9, 9, 7, 9, 9, 9, 9, 9, 9, 9, 1, 9, 9, 9}) == std::vector{6, 14});
    CHECK(begins("loss>8", {1, NAN, INFINITY, 1, -INFINITY}) == std::vector{2});
    CHECK(begins("loss<8", {10, NAN, 10, -INFINITY, INFINITY}) == std::vector{2, 4});
    CHECK(begins("norm>8", {9, 9, 9}).empty());  // the record has no such number
}

TEST_CASE("alerts: the fields are the numbers of a step's record") {
    StepRecord record = test::example();
    record.seq = 64;
    record.watts = record.joules_per_token = 1.5;
    record.slowest = SlowestRank{};
    record.verified = VerifiedStep{};
    std::vector<std::string> numbers;
    const ordered_json line = metrics_json(record);
    for (const auto& [key, value] : line.items())
        if (value.is_number() && key != "step") numbers.push_back(key);
    CHECK(numbers == kAlertFields);
}

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
        ValidationWatch rest =
            ValidationWatch::from_json(parse_json<nlohmann::ordered_json>(json_text(begun.to_json())));
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
        CHECK_THROWS_WITH_AS(plateau_from_text(text), doctest::Contains("as in 0.5,3"), Error);
    }
}
