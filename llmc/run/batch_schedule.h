// How many tokens an optimizer step takes. Large runs begin with small batches, as GPT-3's (arXiv 2005.14165) and
// DeepSeek-V3's (arXiv 2412.19437) did: early gradients agree, and a small batch learns as much from fewer tokens.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// In the first stages so many tokens a step as each says; then --total-batch.
class BatchSchedule {
public:
    struct Stage {
        int64_t tokens, steps;
        bool operator==(const Stage&) const = default;
    };

    BatchSchedule() = default;
    BatchSchedule(std::vector<Stage> stages, int64_t total_batch) : stages_(std::move(stages)), last_(total_batch) {}

    const std::vector<Stage>& stages() const { return stages_; }
    int64_t tokens_of(int64_t step) const;     // steps are counted from 1
    int64_t tokens_until(int64_t step) const;  // of steps 1 to `step` together
    int64_t steps_within(int64_t tokens) const;
    bool grows_after(int64_t step) const { return tokens_of(step + 1) != last_; }

    bool operator==(const BatchSchedule&) const = default;

private:
    std::vector<Stage> stages_;
    int64_t last_ = 1;
};

// --batch-schedule TOKENS:STEPS,..., each with more tokens than the one before; "off": none. Throws Error(bad_flags).
std::vector<BatchSchedule::Stage> batch_stages_from_text(const std::string& text);

}  // namespace llmc
