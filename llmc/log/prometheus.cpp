#include "llmc/log/prometheus.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/log/metrics.h"

namespace llmc {
namespace {

using nlohmann::ordered_json;

struct Metric {
    const char* key;   // in metrics.jsonl
    const char* name;  // after train_gpt_
    const char* type;
    const char* help;
};

constexpr char kValidation[] = "val_loss";
constexpr char kTime[] = "time";
constexpr Metric kMetrics[] = {
    {"step", "step", "gauge", "Optimizer steps taken."},
    {"loss", "loss", "gauge", "Training loss of the last step, nats per token."},
    {kValidation, "validation_loss", "gauge", "Loss of the last validation, nats per token."},
    {"lr", "learning_rate", "gauge", "Learning rate of the last step."},
    {"norm", "gradient_norm", "gauge", "Global gradient norm of the last step, before clipping."},
    {"tokens", "tokens_total", "counter", "Training tokens consumed, over all ranks."},
    {"tokens_per_s", "tokens_per_second", "gauge", "Training tokens per second of the last step, over all ranks."},
    {"skipped", "skipped_steps_total", "counter", "Steps skipped because of non-finite numbers or spikes."},
    {"loss_scale", "loss_scale", "gauge", "Loss scale of the last step."},
    {"watts", "power_watts", "gauge", "Power of all ranks' cards over the last step."},
    {"joules_per_token", "joules_per_token", "gauge", "Energy of all ranks' cards per training token, last step."},
    {kTime, "last_record_timestamp_seconds", "gauge", "When the newest of these numbers was written, Unix time."},
};

std::string escaped(const std::string& text) {
    // Labels are UTF-8, which a path need not be.
    const std::string valid = parse_json<ordered_json>(json_text(ordered_json(text)));
    std::string label;
    for (const char c : valid) {
        if (c == '\\' || c == '"') label += '\\';
        label += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return label;
}

std::string number_text(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
    return strprintf("%.17g", number);
}

}  // namespace

PrometheusFile::PrometheusFile(const std::string& file, const std::string& run)
    : file_(file), labels_(run.empty() ? "" : "run=\"" + escaped(run) + "\"") {
    try {
        write_file(file_, text());
    } catch (const Error& error) {
        throw Error(ExitCode::bad_flags, std::string("--prometheus: ") + error.what());
    }
}

void PrometheusFile::write(const ordered_json& record) {
    for (const auto& [key, value] : record.items()) {
        const std::optional<double> number = get_number(record, key);
        if (!number) continue;
        const bool validation = key.starts_with(kValidation);
        const size_t name = sizeof kValidation;  // behind its "_"
        numbers_[validation ? kValidation : key][validation && key.size() > name ? key.substr(name) : ""] = *number;
    }
    numbers_[kTime][""] = static_cast<double>(std::time(nullptr));
    try {
        write_file(file_, text());
    } catch (const Error& error) {
        if (!failed_) std::fprintf(stderr, "note: --prometheus: %s\n", error.what());
        failed_ = true;
    }
}

std::string PrometheusFile::text() const {
    std::string all;
    for (const Metric& metric : kMetrics) {
        const auto found = numbers_.find(metric.key);
        if (found == numbers_.end()) continue;
        all += strprintf("# HELP train_gpt_%s %s\n# TYPE train_gpt_%s %s\n", metric.name, metric.help, metric.name,
                         metric.type);
        for (const auto& [set, number] : found->second) {
            std::string labels = labels_;
            if (!set.empty()) labels += (labels.empty() ? "set=\"" : ",set=\"") + escaped(set) + "\"";
            if (!labels.empty()) labels = "{" + labels + "}";
            all += strprintf("train_gpt_%s%s %s\n", metric.name, labels.c_str(), number_text(number).c_str());
        }
    }
    return all;
}

}  // namespace llmc
