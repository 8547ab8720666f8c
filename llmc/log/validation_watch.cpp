// Reads the rule of --plateau, and counts the validations without a better loss.
#include "llmc/log/validation_watch.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/base/text.h"

namespace llmc {

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

Json ValidationWatch::to_json() const {
    Json json = {{"since_best", since_best_}, {"since_change", since_change_}, {"rate_factor", rate_factor_}};
    if (best_) json["best"] = *best_;
    return json;
}

ValidationWatch ValidationWatch::from_json(const Json& json) {
    ValidationWatch watch;
    if (json.contains("best")) watch.best_ = json.at("best").get<double>();
    watch.since_best_ = json.at("since_best").get<int64_t>();
    watch.since_change_ = json.at("since_change").get<int64_t>();
    watch.rate_factor_ = json.at("rate_factor").get<double>();
    return watch;
}

}  // namespace llmc
