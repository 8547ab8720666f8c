// Reads the rules of --alert and --plateau, and counts the steps and validations for which they hold.
#include "llmc/log/watches.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/log/metrics.h"

namespace llmc {

// ---- --alert: rules over the numbers of a step ----------------------------------------------------------------------

const std::vector<std::string> kAlertFields = words_in(
    "loss lr norm tokens seq ms tokens_per_s skipped loss_scale watts joules_per_token slowest_rank slowest_ratio "
    "slowest_data_ms peers_ms verify_ms");

namespace {

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(' ');
    return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

AlertRule alert_rule(const std::string& text) {
    AlertRule rule;
    rule.text = trimmed(text);
    const size_t sign = rule.text.find_first_of("<>"), steps = rule.text.find(" for ");
    const auto wrong = [&](const std::string& why) { refuse("'" + rule.text + "' " + why); };
    if (sign == std::string::npos) wrong("is not a rule such as loss>8 or tokens_per_s<1e5 for 20");
    rule.above = rule.text[sign] == '>';
    rule.field = trimmed(rule.text.substr(0, sign));
    if (!contains(kAlertFields, rule.field))
        wrong("is a rule over '" + rule.field + "', which is not one of " + joined(kAlertFields));
    const std::string limit = rule.text.substr(sign + 1, std::min(steps, rule.text.size()) - sign - 1);
    rule.limit = number_in<double>(trimmed(limit)).value_or(NAN);
    if (!std::isfinite(rule.limit)) wrong("needs a number after " + rule.text.substr(sign, 1));
    if (steps != std::string::npos) rule.steps = number_in<int64_t>(trimmed(rule.text.substr(steps + 5))).value_or(0);
    if (rule.steps < 1) wrong("needs a number of steps, from 1 on, after 'for'");
    return rule;
}

}  // namespace

std::vector<AlertRule> alert_rules(const std::string& text) {
    std::vector<AlertRule> rules;
    if (text == "off") return rules;
    for (const std::string& rule : split(text, ',')) rules.push_back(alert_rule(rule));
    return rules;
}

Alerts::Alerts(const std::vector<AlertRule>& rules) {
    for (const AlertRule& rule : rules) rules_.push_back({rule});
}

std::vector<Alerts::Alert> Alerts::observe(const nlohmann::ordered_json& record) {
    std::vector<Alert> alerts;
    for (auto& [rule, steps] : rules_) {
        const std::optional<double> value = find_number(record, rule.field);
        const bool passed = value && (std::isnan(*value) || (rule.above ? *value > rule.limit : *value < rule.limit));
        steps = passed ? steps + 1 : 0;
        if (steps == rule.steps) alerts.push_back({rule.text, *value});
    }
    return alerts;
}

// ---- --plateau and --early-stop: validation losses that stop improving ----------------------------------------------

PlateauRule plateau_from_text(const std::string& text) {
    PlateauRule rule;
    if (text == "off") return rule;
    const std::vector<std::string> parts = split(text, ',');
    if (parts.size() == 2) {
        rule.factor = number_in<double>(parts[0]).value_or(0);
        rule.patience = number_in<int64_t>(parts[1]).value_or(-1);
    }
    if (parts.size() != 2 || !(rule.factor > 0 && rule.factor < 1) || rule.patience < 0)
        refuse(
            "--plateau {}: expected off or FACTOR,PATIENCE, a factor between 0 and 1 and a number of validations, as "
            "in 0.5,3",
            text);
    return rule;
}

ValidationWatch::Verdict ValidationWatch::observe(double loss, const PlateauRule& rule, int64_t early_stop) {
    constexpr double kBetter = 1 - 1e-4;
    if (std::isfinite(loss) && (!best_ || loss < *best_ * kBetter)) {
        best_ = loss;
        since_best_ = since_change_ = 0;
        return Verdict::none;
    }
    since_best_++;
    since_change_++;
    if (is_over(early_stop)) return Verdict::stop;
    if (rule == PlateauRule{} || since_change_ <= rule.patience) return Verdict::none;
    since_change_ = 0;
    rate_factor_ *= rule.factor;
    return Verdict::lower_rate;
}

bool ValidationWatch::forget_losses() {
    since_best_ = since_change_ = 0;
    return std::exchange(best_, std::nullopt).has_value();
}

nlohmann::ordered_json ValidationWatch::to_json() const {
    nlohmann::ordered_json json = {
        {"since_best", since_best_}, {"since_change", since_change_}, {"rate_factor", rate_factor_}};
    if (best_) json["best"] = *best_;
    return json;
}

ValidationWatch ValidationWatch::from_json(const nlohmann::ordered_json& json) {
    ValidationWatch watch;
    if (json.contains("best")) watch.best_ = json.at("best").get<double>();
    watch.since_best_ = json.at("since_best").get<int64_t>();
    watch.since_change_ = json.at("since_change").get<int64_t>();
    watch.rate_factor_ = json.at("rate_factor").get<double>();
    return watch;
}

}  // namespace llmc
