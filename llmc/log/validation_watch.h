// What a run concludes from validation losses that get no better: a lower learning rate, or an end.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace llmc {

// --plateau FACTOR,PATIENCE: after more than PATIENCE validations in a row without a better loss, the learning rate is
// FACTOR times what it was, from then on; as PyTorch's ReduceLROnPlateau with its defaults.
struct PlateauRule {
    double factor = 1;
    int64_t patience = 0;  // validations
    bool operator==(const PlateauRule&) const = default;
};
PlateauRule plateau_from_text(const std::string& text);  // "off": factor 1

// Of the losses so far. A loss is better if it is 1e-4 of the best one below it; one that is not finite never is.
class ValidationWatch {
public:
    enum class Verdict { none, lower_rate, stop };
    // `early_stop`: more than so many validations without a better loss end the run; 0: none do.
    Verdict observe(double loss, const PlateauRule& rule, int64_t early_stop);

    bool is_over(int64_t early_stop) const { return early_stop > 0 && since_best_ > early_stop; }

    double rate_factor() const { return rate_factor_; }  // what the schedule is multiplied by
    int64_t since_best() const { return since_best_; }   // validations

    nlohmann::ordered_json to_json() const;
    static ValidationWatch from_json(const nlohmann::ordered_json& json);

private:
    std::optional<double> best_;
    int64_t since_best_ = 0, since_change_ = 0;  // since the best, and since then or the rate's last change
    double rate_factor_ = 1;
};

}  // namespace llmc
