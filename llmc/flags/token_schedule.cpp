// Parses schedules of batch sizes and sequence lengths, and looks up their values at a step.
#include "llmc/flags/token_schedule.h"

#include <algorithm>
#include <cstdio>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {

int64_t TokenSchedule::tokens_of(int64_t step) const {
    for (const TokenStage& stage : stages_) {
        if (step <= stage.steps) return stage.tokens;
        step -= stage.steps;
    }
    return last_;
}

int64_t TokenSchedule::tokens_until(int64_t step) const {
    int64_t tokens = 0;
    for (const TokenStage& stage : stages_) {
        const int64_t steps = std::min(step, stage.steps);
        tokens += steps * stage.tokens;
        step -= steps;
    }
    return tokens + step * last_;
}

int64_t TokenSchedule::steps_within(int64_t tokens) const {
    int64_t all = 0;
    for (const TokenStage& stage : stages_) {
        const int64_t steps = std::min(tokens / stage.tokens, stage.steps);
        all += steps, tokens -= steps * stage.tokens;
        if (steps < stage.steps) return all;
    }
    return all + tokens / last_;
}

static TokenStages stages_from_text(const char* flag, const char* example, const std::string& text) {
    TokenStages stages;
    if (text == "off") return stages;
    const auto refuse = [&](const std::string& problem) {
        throw Error(ExitCode::bad_flags,
                    "{} {}: {}; expected off, or TOKENS:STEPS,... with growing numbers of tokens, as in {}", flag, text,
                    problem, example);
    };
    constexpr long long kMost = 1LL << 28;  // of each: their products can still be added up
    for (const std::string& word : split(text, ',')) {
        long long tokens = 0, steps = 0;
        int used = -1;
        const bool read = std::sscanf(word.c_str(), "%15lld:%15lld%n", &tokens, &steps, &used) == 2;
        if (!read || static_cast<size_t>(used) != word.size() || std::min(tokens, steps) < 1 ||
            std::max(tokens, steps) > kMost)
            refuse("'" + word + "' is not a stage");
        if (!stages.empty() && tokens <= stages.back().tokens) refuse("'" + word + "' has no more tokens than before");
        stages.push_back({tokens, steps});
    }
    return stages;
}

TokenStages batch_stages_from_text(const std::string& text) {
    return stages_from_text("--batch-schedule", "65536:1000,131072:2000", text);
}
TokenStages seq_stages_from_text(const std::string& text) {
    return stages_from_text("--seq-schedule", "128:1000,512:2000", text);
}

}  // namespace llmc
