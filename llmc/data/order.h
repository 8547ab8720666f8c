// The order of samples: which source a run takes its next sample from, and which of the source's samples it is. Also
// reads --train, which names the sources and their weights.
//
// The sample at a position is a pure function of the position. So a run resumes anywhere without replaying the order,
// and the order does not depend on ranks or micro-batches.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// ---- one source -----------------------------------------------------------------------------------------------------

// A keyed permutation of [0, n), computed for each index separately. A balanced Feistel network permutes the smallest
// domain of 4^k >= n values, whatever its round function is. Cycle walking (applying it again while the result is >= n)
// restricts it to [0, n). Because 4^k < 4n, this takes fewer than 4 passes on average. See Black and Rogaway, "Ciphers
// with arbitrary finite domains" (2002).
uint64_t order_key(uint64_t seed, uint64_t epoch);           // key of the permutation in one pass over the data
uint64_t permute(uint64_t index, uint64_t n, uint64_t key);  // index < n
// The sample at a position of the endless training order: pass after pass over n samples, each in its own order.
uint64_t sample_at(uint64_t position, uint64_t n, uint64_t seed);

// ---- several sources ------------------------------------------------------------------------------------------------

// The sources of --train: a pattern of shards, or a mixture whose weights may change in stages, as in
// 'A:0.7,B:0.3@0;A:0.2,C:0.8@60%'.
struct TrainSources {
    struct Stage {
        std::vector<int64_t> weights;  // one per source, in millionths; 0 if the stage leaves the source out
        int64_t start = 0;             // in millionths of a step, or of a percent of the run
        bool is_percentage = false;

        int64_t steps_before(int64_t max_steps) const;
    };
    std::vector<std::string> patterns;
    std::vector<Stage> stages;

    bool is_mixture() const { return patterns.size() > 1; }
};

// Reads --train; throws Error(bad_flags). Commas, semicolons and colons within {} and [] are part of a pattern. A text
// is a plain pattern unless it has a colon, and a comma or semicolon, or @ after the last colon.
TrainSources sources_from_text(const std::string& text);

// The order of the samples of a set of shards whose sources follow each other: sample 0 is the first source's first.
//
// In a stage, sources take turns in a schedule that repeats. A source gets exactly its weight's share of every period.
// Counted from the stage's start, it is never a whole sample ahead of its share or behind it. Within a source, samples
// come as sample_at() orders them, independently of other sources and stages. With one source that is the whole order.
class SampleOrder {
public:
    struct Stage {
        int64_t first;                 // position of its first sample; 0 in the first stage, and growing
        std::vector<int64_t> weights;  // of each source
    };
    // Samples of the schedule that repeats, at most. It is the sum of the weights without their common divisor.
    static constexpr int64_t kLongestPeriod = 1000000;

    // `samples`: of each source. Throws Error(bad_flags) if the weights of a stage make its period too long.
    SampleOrder(std::vector<int64_t> samples, const std::vector<Stage>& stages, uint64_t seed);

    int64_t at(int64_t position) const;                               // a sample of the set
    std::vector<int64_t> used_before(int64_t position) const;         // of each source: how many samples come earlier
    const std::vector<int64_t>& samples() const { return samples_; }  // of each source
    // Identifies the order on shards with this fingerprint. A single source has the fingerprint of its shards.
    uint64_t fingerprint(uint64_t shards) const;

private:
    struct Period {
        int64_t first = 0;                          // position of the stage's first sample
        std::vector<int64_t> weights;               // of each source, without their common divisor
        std::vector<uint32_t> sources;              // the source of each sample of the period
        std::vector<std::vector<uint32_t>> places;  // of each source in the period
        std::vector<int64_t> before;                // samples of each source before the stage

        int64_t used_before(size_t source, int64_t position) const;
    };
    const Period& period_at(int64_t position) const;

    std::vector<int64_t> samples_;
    uint64_t seed_;
    std::vector<Period> periods_;  // of each stage
};

}  // namespace llmc
