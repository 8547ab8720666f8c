// --plateau and --early-stop lower the learning rate, or end the run, if validation losses stop improving.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "llmc/base/json.h"

namespace llmc {

// --plateau FACTOR,PATIENCE: after more than PATIENCE validations in a row without a better loss, the learning rate is
// multiplied by FACTOR, like PyTorch's ReduceLROnPlateau with its defaults.
struct PlateauRule {
    double factor = 1;
    int64_t patience = 0;  // validations
    bool operator==(const PlateauRule&) const = default;
};
PlateauRule plateau_from_text(const std::string& text);  // "off": factor 1

// A loss is better if it is below the best one by more than a fraction of 1e-4. A non-finite loss is never better.
class ValidationWatch {
public:
    enum class Verdict { none, lower_rate, stop };
    // `early_stop`: the run ends after more than this number of validations without a better loss; 0 means never.
    Verdict observe(double loss, const PlateauRule& rule, int64_t early_stop);

    bool is_over(int64_t early_stop) const { return early_stop > 0 && since_best_ > early_stop; }

    double rate_factor() const { return rate_factor_; }  // factor of the schedule's learning rate
    int64_t since_best() const { return since_best_; }   // validations since the best loss

    // Forgets the best loss, which says nothing about losses on other data. Returns false if there is none.
    bool forget_losses() {
        since_best_ = since_change_ = 0;
        return std::exchange(best_, std::nullopt).has_value();
    }
    void forget_rate() { rate_factor_ = 1; }

    Json to_json() const;
    static ValidationWatch from_json(const Json& json);

private:
    std::optional<double> best_;
    int64_t since_best_ = 0, since_change_ = 0;  // since the best loss; since that or the last change of the rate
    double rate_factor_ = 1;
};

}  // namespace llmc
