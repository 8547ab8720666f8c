// Permutes the samples of a source, shares positions among sources, and reads --train.
// build: fuzzed
#include "llmc/data/order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "llmc/base/text.h"
#include "llmc/device/math.cuh"

namespace llmc {

uint64_t order_key(uint64_t seed, uint64_t epoch) { return mix64(mix64(seed + kGolden64) + (epoch + 1) * kGolden64); }

uint64_t permute(uint64_t index, uint64_t n, uint64_t key) {
    constexpr uint64_t rounds = 8;
    if (n <= 1) return 0;
    const int half_bits = (std::bit_width(n - 1) + 1) / 2;
    const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & half_mask;
        for (uint64_t round = 0; round < rounds; ++round) {
            // A half has at most 32 bits, so `round` and `right` never overlap in the hashed value.
            const uint64_t next = left ^ (mix64(key ^ (round << 48) ^ right) & half_mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= n);
    return index;
}

uint64_t sample_at(uint64_t position, uint64_t n, uint64_t seed) {
    return permute(position % n, n, order_key(seed, position / n));
}

// ---- --train --------------------------------------------------------------------------------------------------------
namespace {

constexpr int64_t kMillion = 1000000;

// The parts between separators that are not within {} or [].
std::vector<std::string> split_outside_brackets(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (const char c : text) {
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c == separator && depth == 0)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

// A decimal number of at most six digits after the point, in millionths; -1 if the text is something else.
int64_t millionths(const std::string& text) {
    if (text.empty() || text.find_first_not_of("0123456789.") != std::string::npos) return -1;
    char* end = nullptr;
    const double scaled = std::strtod(text.c_str(), &end) * kMillion;
    if (*end != '\0' || scaled > 1e15 || std::abs(scaled - std::round(scaled)) > 1e-3) return -1;
    return std::llround(scaled);
}

class SourcesReader {
public:
    explicit SourcesReader(const std::string& text) : text_(text) {}

    TrainSources read() {
        for (const std::string& text : split_outside_brackets(text_, ';')) read_stage(text);
        for (TrainSources::Stage& stage : sources_.stages) stage.weights.resize(sources_.patterns.size());
        return sources_;
    }

private:
    [[noreturn]] void refuse_it(const std::string& problem) const {
        refuse(
            "--train {}: {}; several sources are PATTERN:WEIGHT,... and further stages ;PATTERN:WEIGHT,...@START, "
            "as in 'A:0.7,B:0.3;A:0.2,C:0.8@60%'; write a comma, semicolon or colon of a path as [,] [;] [:]",
            text_, problem);
    }

    void read_stage(const std::string& text) {
        sources_.stages.emplace_back();
        const std::vector<std::string> items = split_outside_brackets(text, ',');
        for (size_t i = 0; i < items.size(); i++) read_source(items[i], i + 1 == items.size());
    }

    // PATTERN:WEIGHT; the last source of a stage may have @START.
    void read_source(const std::string& item, bool is_last) {
        if (item.empty()) refuse_it(sources_.stages.size() > 1 ? "a stage or source is empty" : "a source is empty");
        std::string weight = split_outside_brackets(item, ':').back();
        if (weight == item) refuse_it("'" + item + "' has no weight");
        const std::string pattern = item.substr(0, item.size() - weight.size() - 1);
        if (pattern.empty()) refuse_it("'" + item + "' has no pattern");
        TrainSources::Stage& stage = sources_.stages.back();
        const size_t at = weight.find('@');
        if (at != std::string::npos && !is_last) refuse_it("'" + item + "': @START stands after a stage's last source");
        if (at != std::string::npos) read_start(weight.substr(at + 1), stage);
        if (at == std::string::npos && is_last && sources_.stages.size() > 1)
            refuse_it("the stage that ends with '" + item + "' has no @START");
        weight = weight.substr(0, at);
        const auto found = std::find(sources_.patterns.begin(), sources_.patterns.end(), pattern);
        const auto source = static_cast<size_t>(found - sources_.patterns.begin());
        if (found == sources_.patterns.end()) sources_.patterns.push_back(pattern);
        if (stage.weights.size() <= source) stage.weights.resize(source + 1);
        if (stage.weights[source] > 0) refuse_it("'" + pattern + "' is twice in a stage");
        stage.weights[source] = millionths(weight);
        if (stage.weights[source] < 1)
            refuse_it("'" + weight + "' is not a weight: a number above 0, at most six digits after the point");
    }

    void read_start(const std::string& text, TrainSources::Stage& stage) const {
        stage.is_percentage = text.ends_with('%');
        stage.start = millionths(text.substr(0, text.size() - stage.is_percentage));
        if (stage.start < 0 || (stage.is_percentage ? stage.start > 100 * kMillion : stage.start % kMillion != 0))
            refuse_it("'@" + text + "' is not a step or a percentage of the run");
        if (sources_.stages.size() == 1 && stage.start > 0) refuse_it("the first stage starts at 0");
    }

    const std::string& text_;
    TrainSources sources_;
};

}  // namespace

int64_t TrainSources::Stage::steps_before(int64_t max_steps) const {
    constexpr int64_t whole = 100 * kMillion;  // two products, because one of all digits could overflow
    return is_percentage ? max_steps / whole * start + max_steps % whole * start / whole : start / kMillion;
}

TrainSources sources_from_text(const std::string& text) {
    const std::vector<std::string> parts = split_outside_brackets(text, ':');
    const bool lists = split_outside_brackets(text, ',').size() + split_outside_brackets(text, ';').size() > 2;
    const bool starts = parts.back().find('@') != std::string::npos;
    if (parts.size() > 1 && (lists || starts)) return SourcesReader(text).read();
    return {{text}, {{{kMillion}}}};
}

// Shares a period, whose length is the sum of the weights, among sources: after any n samples, a source has its share
// n * weight / period to within 1 - 1 / (2k - 2) samples, for k sources. R. Tijdeman, "The chairman assignment problem"
// (1980): of the sources that are far enough behind their share, the next sample is of the source that would first be
// too far behind.
static std::vector<uint32_t> shared_period(const std::vector<int64_t>& weights, int64_t period) {
    const int64_t k = std::max<int64_t>(2, std::ssize(weights) - std::count(weights.begin(), weights.end(), 0));
    const int64_t parts = 2 * k - 2;
    std::vector<int64_t> used(weights.size());
    std::vector<uint32_t> sources;
    for (int64_t n = 1; n <= period; n++) {
        size_t next = weights.size();
        const auto limit = [&](size_t i) { return parts * (used[i] + 1) - 1; };  // times period / (parts * weight)
        for (size_t i = 0; i < weights.size(); i++) {
            const int64_t behind = n * weights[i] - used[i] * period;  // in samples, times period
            if (parts * behind < period) continue;
            if (next == weights.size() || limit(i) * weights[next] < limit(next) * weights[i]) next = i;
        }
        used[next]++;
        sources.push_back(static_cast<uint32_t>(next));
    }
    return sources;
}

SampleOrder::SampleOrder(std::vector<int64_t> samples, const std::vector<Stage>& stages, uint64_t seed)
    : samples_(std::move(samples)), seed_(seed) {
    for (const Stage& stage : stages) {
        Period next{stage.first, stage.weights, {}, std::vector<std::vector<uint32_t>>(samples_.size()), {}};
        int64_t divisor = 0;
        for (const int64_t weight : next.weights) divisor = std::gcd(divisor, weight);
        for (int64_t& weight : next.weights) weight /= divisor;
        const int64_t period = std::accumulate(next.weights.begin(), next.weights.end(), int64_t{0});
        if (period > kLongestPeriod)
            refuse(
                "--train: the weights of a stage are exact only after {} samples, and the limit is {}; round them to "
                "fewer digits",
                with_commas(period), with_commas(kLongestPeriod));
        next.sources = shared_period(next.weights, period);
        for (uint32_t place = 0; place < next.sources.size(); place++)
            next.places[next.sources[place]].push_back(place);
        next.before = periods_.empty() ? std::vector<int64_t>(samples_.size()) : used_before(stage.first);
        periods_.push_back(std::move(next));
    }
}

int64_t SampleOrder::Period::used_before(size_t source, int64_t position) const {
    const std::vector<uint32_t>& mine = places[source];
    const int64_t n = position - first, period = std::ssize(sources);
    const auto later = std::lower_bound(mine.begin(), mine.end(), static_cast<uint32_t>(n % period));
    return before[source] + n / period * std::ssize(mine) + (later - mine.begin());
}

const SampleOrder::Period& SampleOrder::period_at(int64_t position) const {
    size_t stage = periods_.size() - 1;
    while (stage > 0 && periods_[stage].first > position) stage--;
    return periods_[stage];
}

std::vector<int64_t> SampleOrder::used_before(int64_t position) const {
    const Period& period = period_at(position);
    std::vector<int64_t> used;
    for (size_t source = 0; source < samples_.size(); source++) used.push_back(period.used_before(source, position));
    return used;
}

int64_t SampleOrder::at(int64_t position) const {
    const Period& period = period_at(position);
    const uint32_t source = period.sources[static_cast<size_t>((position - period.first) % std::ssize(period.sources))];
    const int64_t first = std::accumulate(samples_.begin(), samples_.begin() + source, int64_t{0});
    const auto index = static_cast<uint64_t>(period.used_before(source, position));
    return first + static_cast<int64_t>(sample_at(index, static_cast<uint64_t>(samples_[source]), seed_));
}

uint64_t SampleOrder::fingerprint(uint64_t shards) const {
    if (samples_.size() == 1) return shards;
    uint64_t hash = shards;
    const auto add = [&](int64_t value) { hash = mix64(hash + static_cast<uint64_t>(value) + kGolden64); };
    for (const int64_t samples : samples_) add(samples);
    for (const Period& period : periods_) {
        add(period.first);
        for (const int64_t weight : period.weights) add(weight);
    }
    return hash;
}

}  // namespace llmc
