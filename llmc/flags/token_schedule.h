// The number of tokens per optimizer step and per sequence. Large runs begin with small batches, as GPT-3's (arXiv
// 2005.14165) and DeepSeek-V3's (arXiv 2412.19437) did: early gradients agree, and a small batch learns as much from
// fewer tokens. Short sequences to begin with make early steps cheaper and steadier (arXiv 2108.06084).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// For `steps` steps, a step or a sequence has `tokens` tokens.
struct TokenStage {
    int64_t tokens, steps;
    bool operator==(const TokenStage&) const = default;
};
using TokenStages = std::vector<TokenStage>;

// The tokens of a step, or of a sequence, throughout a run: the stages come first, and `last` tokens afterwards.
class TokenSchedule {
public:
    TokenSchedule() = default;
    TokenSchedule(TokenStages stages, int64_t last) : stages_(std::move(stages)), last_(last) {}

    const TokenStages& stages() const { return stages_; }
    int64_t tokens_of(int64_t step) const;  // steps are counted from 1
    // For tokens per step: the tokens of steps 1 to `step`, and the number of steps that take at most `tokens`.
    int64_t tokens_until(int64_t step) const;
    int64_t steps_within(int64_t tokens) const;
    bool grows_after(int64_t step) const { return tokens_of(step + 1) != last_; }

    bool operator==(const TokenSchedule&) const = default;

private:
    TokenStages stages_;
    int64_t last_ = 1;
};

// Read --batch-schedule and --seq-schedule: TOKENS:STEPS,..., each stage with more tokens than the one before, or
// "off". They throw Error(bad_flags).
TokenStages batch_stages_from_text(const std::string& text);
TokenStages seq_stages_from_text(const std::string& text);

}  // namespace llmc
