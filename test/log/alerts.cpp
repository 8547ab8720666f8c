// Rules of --alert: how they are read, and the steps in which they begin to hold.
#include "llmc/log/alerts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
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

TEST_CASE("alerts: rules that cannot be") {
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
