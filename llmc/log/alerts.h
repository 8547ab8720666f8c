// --alert: rules over the numbers of a step, such as "loss>8" or "tokens_per_s<1e5 for 20".
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace llmc {

// The numbers of a step's record in metrics.jsonl that a rule can name.
extern const std::vector<std::string> kAlertFields;

struct AlertRule {
    std::string text;   // "tokens_per_s<1e5 for 20"
    std::string field;  // of kAlertFields
    bool above = true;  // the rule holds above the limit, else below it
    double limit = 0;
    int64_t steps = 1;  // in a row
};
// "RULE,RULE,..." or "off". Throws Error(bad_flags) that lists the fields if a name is not one of them.
std::vector<AlertRule> alert_rules(const std::string& text);

// Watches the rules step by step.
class Alerts {
public:
    explicit Alerts(const std::vector<AlertRule>& rules);

    struct Alert {
        std::string rule;
        double value;
    };
    // The rules that begin to hold with this step's record. A rule whose field the record lacks does not hold. A number
    // that is NaN breaks every limit.
    std::vector<Alert> observe(const nlohmann::ordered_json& record);

private:
    struct Watched {
        AlertRule rule;
        int64_t steps = 0;  // in a row for which the limit was passed
    };
    std::vector<Watched> rules_;
};

}  // namespace llmc
