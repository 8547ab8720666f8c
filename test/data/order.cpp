// The order of samples: a permutation for every n, different for every epoch and seed, without visible structure.
// Mixtures: each source's share of any number of samples, places that need no replay, stages, and every way to write
// one wrong.
#include "llmc/data/order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "test/data/shard_files.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

// ---- one source -----------------------------------------------------------------------------------------------------

static bool is_permutation_of(uint64_t n, uint64_t key) {
    std::vector<bool> seen(n, false);
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t value = permute(i, n, key);
        if (value >= n || seen[value]) return false;
        seen[value] = true;
    }
    return true;
}

TEST_CASE("permute is a bijection of [0, n)") {
    for (uint64_t n = 1; n <= 300; ++n)
        for (uint64_t epoch = 0; epoch < 5; ++epoch) {
            CAPTURE(n);
            CHECK(is_permutation_of(n, order_key(1337, epoch)));
        }
    for (uint64_t n : {1023u, 1024u, 1025u, 4095u, 4096u, 4097u, 65537u, 300007u}) {
        CAPTURE(n);
        CHECK(is_permutation_of(n, order_key(7, 3)));
    }
}

TEST_CASE("permute stays in range and distinct for huge n") {
    for (uint64_t n : {uint64_t{1} << 32, (uint64_t{1} << 40) + 1, (uint64_t{1} << 63) + 5, ~uint64_t{0}}) {
        std::set<uint64_t> values;
        for (uint64_t i = 0; i < 2000; ++i) values.insert(permute(i < 1000 ? i : n - 1 - i, n, order_key(1, 1)));
        CHECK(values.size() == 2000);
        CHECK(*values.rbegin() < n);
        CHECK(*values.rbegin() > n / 10 * 9);  // the whole range is used
        CHECK(*values.begin() < n / 10);
    }
}

// A run that another version of the program resumes must not see samples twice.
TEST_CASE("the order is that of earlier versions") {
    const std::vector<uint64_t> three_passes = {4, 8, 7, 5, 3, 9, 2, 6, 1, 0,  //
                                                0, 7, 2, 4, 9, 3, 1, 6, 5, 8,  //
                                                3, 5, 9, 6, 1, 7, 0, 4, 8, 2};
    for (size_t i = 0; i < three_passes.size(); i++) CHECK(sample_at(i, 10, 1337) == three_passes[i]);
    CHECK(sample_at(123456789012, 1000003, 7) == 167159);
}

TEST_CASE("the order differs by epoch and seed") {
    const uint64_t n = 200;
    std::set<std::vector<uint64_t>> orders;
    std::set<uint64_t> keys;
    for (uint64_t seed = 0; seed < 10; ++seed)
        for (uint64_t epoch = 0; epoch < 100; ++epoch) {
            keys.insert(order_key(seed, epoch));
            std::vector<uint64_t> order;
            for (uint64_t i = 0; i < n; ++i) order.push_back(sample_at(epoch * n + i, n, seed));
            orders.insert(order);
        }
    CHECK(keys.size() == 1000);
    CHECK(orders.size() == 1000);
}

TEST_CASE("every position gets every sample equally often over many epochs" * doctest::test_suite(kOnce)) {
    // Chi-square of place x sample counts. Its mean is the degrees of freedom and its standard deviation sqrt(2 *
    // that). The orders are fixed, so this test is deterministic.
    for (const int n : {5, 10, 33, 100}) {
        const int epochs = 400 * n;
        std::vector<double> counts(static_cast<size_t>(n) * n);
        for (int epoch = 0; epoch < epochs; ++epoch)
            for (int i = 0; i < n; ++i) ++counts[i * n + permute(i, n, order_key(1337, epoch))];
        double chi_square = 0;
        for (double count : counts) chi_square += (count - 400) * (count - 400) / 400;
        const double freedom = (n - 1.0) * (n - 1.0);
        CAPTURE(n);
        CAPTURE(chi_square);
        CHECK(std::abs(chi_square - freedom) < 4 * std::sqrt(2 * freedom));
    }
}

TEST_CASE("neighbours in the order are not neighbours in the data") {
    const uint64_t n = 100003, key = order_key(1337, 0);
    int close = 0;
    double distance = 0;
    for (uint64_t i = 0; i + 1 < n; ++i) {
        const double step =
            std::abs(static_cast<double>(permute(i, n, key)) - static_cast<double>(permute(i + 1, n, key)));
        distance += step / static_cast<double>(n);
        close += step < 2;
    }
    CHECK(close < 20);  // 2 expected
    CHECK(distance / static_cast<double>(n) == doctest::Approx(1.0 / 3).epsilon(0.01));
}

// ---- several sources ------------------------------------------------------------------------------------------------

namespace {

using Weights = std::vector<int64_t>;
const std::vector<Weights> kMixtures = {{7, 3},
                                        {1, 1},
                                        {1, 1, 1},
                                        {1, 999},
                                        {333, 334, 333},
                                        {40, 30, 20, 9, 1},
                                        {1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
                                        {123457, 654321, 222222}};

constexpr int64_t kMany = int64_t{1} << 40;

SampleOrder endless(size_t sources, const std::vector<SampleOrder::Stage>& stages, uint64_t seed = 7) {
    return {std::vector<int64_t>(sources, kMany), stages, seed};
}

}  // namespace

TEST_CASE("mixture: at each of a million positions, every source has its share to within one sample" *
          doctest::test_suite(kOnce)) {
    for (const Weights& weights : kMixtures) {
        const size_t k = weights.size();
        const int64_t all = std::accumulate(weights.begin(), weights.end(), int64_t{0});
        const SampleOrder order(std::vector<int64_t>(k, 1), {{0, weights}}, 7);  // its samples say their source
        std::vector<int64_t> counts(k);
        std::vector<double> least(k), most(k);  // counts minus shares
        for (int64_t n = 1; n <= 1000000; n++) {
            counts[static_cast<size_t>(order.at(n - 1))]++;
            for (size_t i = 0; i < k; i++) {
                const double off = static_cast<double>(counts[i] * all - n * weights[i]) / static_cast<double>(all);
                least[i] = std::min(least[i], off), most[i] = std::max(most[i], off);
            }
            if (n % 99991 == 0) CHECK(order.used_before(n) == counts);
        }
        const double bound = 1 - 1 / (2.0 * static_cast<double>(k) - 2);
        for (size_t i = 0; i < k; i++) {
            CAPTURE(i);
            CAPTURE(weights[i]);
            CHECK(std::max(-least[i], most[i]) <= bound + 1e-9);
            // A window's count differs from its share by the difference of two places. Two sources: at most one sample.
            CHECK(most[i] - least[i] <= 2 * bound + 1e-9);
        }
    }
}

TEST_CASE("mixture: samples computed one by one equal a replay, across stages and passes") {
    const std::vector<int64_t> samples = {50, 1000, 7};
    const std::vector<SampleOrder::Stage> stages = {
        {0, {7, 3, 0}}, {331, {2, 0, 8}}, {332, {0, 1, 0}}, {600, {3, 3, 1}}};
    const SampleOrder order(samples, stages, 1337);
    std::vector<int64_t> used(3), firsts = {0, 50, 1050};
    std::vector<int64_t> replayed;
    size_t stage = 0;
    for (int64_t n = 0; n < 5000; n++) {
        if (stage + 1 < stages.size() && stages[stage + 1].first == n) stage++;
        CHECK(order.used_before(n) == used);
        const int64_t sample = order.at(n);
        const size_t source = sample < 50 ? 0 : sample < 1050 ? 1 : 2;
        CHECK(stages[stage].weights[source] > 0);
        // Within a source, its samples come as they would alone.
        CHECK(sample - firsts[source] == static_cast<int64_t>(sample_at(used[source], samples[source], 1337)));
        CHECK(sample - firsts[source] == SampleOrder({samples[source]}, {{0, {1}}}, 1337).at(used[source]));
        used[source]++;
        replayed.push_back(sample);
    }
    for (const int64_t n : {4999, 0, 331, 330, 332, 599, 600, 2500}) CHECK(order.at(n) == replayed[n]);
    CHECK(order.used_before(331) == std::vector<int64_t>{232, 99, 0});
}

TEST_CASE("mixture: only the ratio of weights matters, and a single source has the plain order") {
    const SampleOrder tenths = endless(2, {{0, {700000, 300000}}}), sevens = endless(2, {{0, {7, 3}}});
    for (int64_t n = 0; n < 100; n++) CHECK(tenths.at(n) == sevens.at(n));
    CHECK(tenths.fingerprint(5) == sevens.fingerprint(5));
    const SampleOrder plain({62}, {{0, {1}}}, 42), mixed({62}, {{0, {3}}, {10, {4}}}, 42);
    for (uint64_t n = 0; n < 300; n++) {
        CHECK(plain.at(static_cast<int64_t>(n)) == static_cast<int64_t>(sample_at(n, 62, 42)));
        CHECK(plain.at(static_cast<int64_t>(n)) == mixed.at(static_cast<int64_t>(n)));
    }
    CHECK(plain.fingerprint(5) == 5);
    CHECK(mixed.fingerprint(5) == 5);
}

TEST_CASE("mixture: other weights, stages or sources have another fingerprint") {
    std::set<uint64_t> prints = {SampleOrder({200}, {{0, {1}}}, 1).fingerprint(5)};
    const auto add = [&](std::vector<int64_t> samples, const std::vector<SampleOrder::Stage>& stages) {
        CHECK(prints.insert(SampleOrder(std::move(samples), stages, 1).fingerprint(5)).second);
    };
    add({100, 100}, {{0, {1, 1}}});
    add({100, 100}, {{0, {1, 2}}});
    add({90, 110}, {{0, {1, 1}}});
    add({100, 100}, {{0, {1, 1}}, {50, {1, 2}}});
    add({100, 100}, {{0, {1, 1}}, {51, {1, 2}}});
}

TEST_CASE("mixture: a period that is too long is refused") {
    CHECK(endless(2, {{0, {333333, 666667}}}).at(0) == endless(2, {{0, {333333, 666667}}}).at(0));
    check_error(ExitCode::bad_flags, {"--train", "1,000,001 samples", "1,000,000", "fewer digits"}, [] {
        endless(2, {{0, {333333, 666668}}});
    });
}

// ---- --train --------------------------------------------------------------------------------------------------------

TEST_CASE("--train: sources, weights and stages") {
    const TrainSources read = sources_from_text("a/*.bin:0.7,b:3:.3@0;b:3:1@120;a/*.bin:0.2,{c,d}[:]x:12.5@60%");
    CHECK(read.is_mixture());
    CHECK(read.patterns == std::vector<std::string>{"a/*.bin", "b:3", "{c,d}[:]x"});
    REQUIRE(read.stages.size() == 3);
    CHECK(read.stages[0].weights == Weights{700000, 300000, 0});
    CHECK(read.stages[1].weights == Weights{0, 1000000, 0});
    CHECK(read.stages[2].weights == Weights{200000, 0, 12500000});
    CHECK(read.stages[0].steps_before(1000) == 0);
    CHECK(read.stages[1].steps_before(1000) == 120);
    CHECK(read.stages[2].steps_before(1001) == 600);
    const int64_t most = int64_t{1} << 50;
    CHECK(sources_from_text("a:1;b:1@12.5%").stages[1].steps_before(most) == most / 8);
}

TEST_CASE("--train: a plain pattern stays one") {
    for (const char* pattern : {"data/train_*.bin", "data/{a,b}/*.bin", "C:/a.bin", "a,b.bin", "x;y", "data/x:1", "a@3",
                                "u@host:/x", "[,:]*", "{a:1,b:2}", "a@b:c"}) {
        CAPTURE(pattern);
        const TrainSources read = sources_from_text(pattern);
        CHECK_FALSE(read.is_mixture());
        CHECK(read.patterns == std::vector<std::string>{pattern});
        CHECK(read.stages[0].weights.size() == 1);
    }
}

TEST_CASE("--train: every malformed mixture has its message") {
    for (const auto& [text, words] : std::map<std::string, std::string>{
             {"A:0.7,B", "'B' has no weight"},
             {"A,B:1", "'A' has no weight"},
             {"A:1;B@5", "'B@5' has no weight"},
             {"A:x,B:1", "'x' is not a weight"},
             {"A:0,B:1", "'0' is not a weight"},
             {"A:,B:1", "'' is not a weight"},
             {"A:-1,B:1", "'-1' is not a weight"},
             {"A:1e3,B:1", "'1e3' is not a weight"},
             {"A:nan,B:1", "'nan' is not a weight"},
             {"A:1.2.3,B:1", "'1.2.3' is not a weight"},
             {"A:0.3333333,B:1", "'0.3333333' is not a weight: a number above 0, at most six digits"},
             {"A:70%,B:30%", "'70%' is not a weight"},
             {":1,B:1", "':1' has no pattern"},
             {"A:1,,B:1", "a source is empty"},
             {"A:1,B:1,", "a source is empty"},
             {"A:1,B:1;", "a stage or source is empty"},
             {"A:1,A:2", "'A' is twice in a stage"},
             {"A:1,B:1;A:1", "the stage that ends with 'A:1' has no @START"},
             {"A:1@0,B:1", "'A:1@0': @START stands after a stage's last source"},
             {"A:1@5;B:1@9", "the first stage starts at 0"},
             {"A:1;B:1@", "'@' is not a step or a percentage"},
             {"A:1;B:1@x", "'@x' is not a step or a percentage"},
             {"A:1;B:1@1.5", "'@1.5' is not a step or a percentage"},
             {"A:1;B:1@-3", "'@-3' is not a step or a percentage"},
             {"A:1;B:1@101%", "'@101%' is not a step or a percentage"}}) {
        CAPTURE(text);
        check_error(ExitCode::bad_flags, {"--train " + text + ": ", words, "as in 'A:0.7,B:0.3;A:0.2,C:0.8@60%'"},
                    [&text = text] { sources_from_text(text); });
    }
}
