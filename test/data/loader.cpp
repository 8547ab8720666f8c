// Loaders: every sample once per pass and in the same order for every split, exact resume, errors of the prefetch
// thread, clean shutdown, and validation sets that do not divide evenly.
#include "llmc/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "llmc/kernels/embedding.h"
#include "test/data/shard_files.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int T = 3;
constexpr int vocab = 60000;

// Three shards in which token values are positions, so the first token of a sample identifies it.
struct CountingSet {
    TemporaryDirectory dir;
    std::vector<int> first_tokens;  // first token of every sample
    ShardSet set;

    explicit CountingSet(const std::vector<int>& shard_tokens) : set(write(shard_tokens)) {}

    std::vector<std::string> write(const std::vector<int>& shard_tokens) {
        int first = 0, index = 0;
        for (int tokens : shard_tokens) {
            write_shard<uint16_t>(dir / fmt::format("s{}.bin", index++), counting(first, tokens));
            for (int sample = 0; sample < (tokens - 1) / T; ++sample) first_tokens.push_back(first + sample * T);
            first += tokens;
        }
        return {dir / "s*.bin"};
    }
};

// Checks a (B, T) batch of counting tokens and appends each row's first token.
void append_rows(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, int B,
                 std::vector<int>& first_tokens) {
    for (int b = 0; b < B; ++b) {
        for (int t = 0; t < T; ++t) {
            CHECK(tokens[b * T + t] == tokens[b * T] + t);
            CHECK(targets[b * T + t] == tokens[b * T] + t + 1);
        }
        first_tokens.push_back(tokens[b * T]);
    }
}

// The order of a single source.
SampleOrder order_of(const ShardSet& set, uint64_t seed) { return SampleOrder({set.samples(T)}, {{0, {1}}}, seed); }

// The first tokens of the samples of `steps` steps, in the order of positions, from loaders of all ranks.
std::vector<int> training_order(const ShardSet& set, const SampleOrder& samples, int B, int micro_steps, int world,
                                int64_t first_step, int steps) {
    std::vector<std::unique_ptr<TrainLoader>> ranks;
    for (int rank = 0; rank < world; ++rank)
        ranks.push_back(
            std::make_unique<TrainLoader>(set, samples, B, T, rank, world, first_step * micro_steps, vocab));
    std::vector<int> order;
    for (int micro_step = 0; micro_step < steps * micro_steps; ++micro_step)
        for (auto& loader : ranks) {
            const MicroBatch batch = loader->next();
            append_rows({batch.tokens, batch.tokens + B * T}, {batch.targets, batch.targets + B * T}, B, order);
        }
    return order;
}

std::vector<int> training_order(const ShardSet& set, int B, int micro_steps, int world, int64_t first_step, int steps,
                                uint64_t seed) {
    return training_order(set, order_of(set, seed), B, micro_steps, world, first_step, steps);
}

}  // namespace

TEST_CASE("every sample is used once a pass for every world and micro-batch size") {
    const CountingSet data({100, 31, 58});  // 33 + 10 + 19 samples
    const size_t n = data.first_tokens.size();
    REQUIRE(n == 62);
    REQUIRE(data.set.samples(T) == 62);
    const std::multiset<int> all(data.first_tokens.begin(), data.first_tokens.end());
    for (int world = 1; world <= 16; ++world)
        for (const int B : {1, 2, 3, 5})
            for (const int micro_steps : {1, 3}) {
                CAPTURE(world);
                CAPTURE(B);
                const int S = world * B * micro_steps;
                const int steps = static_cast<int>((2 * n + S - 1) / S);  // two passes; batches cross the boundary
                const std::vector<int> order = training_order(data.set, B, micro_steps, world, 0, steps, 42);
                CHECK(std::multiset<int>(order.begin(), order.begin() + n) == all);
                CHECK(std::multiset<int>(order.begin() + n, order.begin() + 2 * n) == all);
                CHECK_FALSE(std::equal(order.begin(), order.begin() + n, order.begin() + n));
            }
}

TEST_CASE("a mixture has one order for every split and start") {
    const CountingSet data({100, 31, 58});
    const ShardSet set({data.dir / "s0.bin", data.dir / "s[12].bin"});
    CHECK(set.samples_by_pattern(T) == std::vector<int64_t>{33, 29});
    const SampleOrder order(set.samples_by_pattern(T), {{0, {2, 1}}, {50, {1, 4}}}, 1337);
    std::vector<int> expected;
    for (int position = 0; position < 4 * 24; ++position)
        expected.push_back(data.first_tokens[static_cast<size_t>(order.at(position))]);
    CHECK(std::count_if(expected.begin(), expected.end(), [](int token) { return token < 100; }) == 33 + 9);
    struct Split {
        int B, micro_steps, world;
    };
    for (const auto& [B, micro_steps, world] : {Split{24, 1, 1}, Split{1, 24, 1}, Split{1, 1, 24}, Split{2, 3, 4},
                                                Split{4, 3, 2}, Split{3, 2, 4}, Split{6, 4, 1}}) {
        CHECK(training_order(set, order, B, micro_steps, world, 0, 4) == expected);
        CHECK(training_order(set, order, B, micro_steps, world, 3, 1) ==
              std::vector<int>(expected.begin() + 72, expected.end()));
    }
}

TEST_CASE("fewer samples than a batch: rows repeat after a pass, never inside one") {
    const CountingSet data({11});  // 3 samples
    const std::vector<int> order = training_order(data.set, 8, 1, 1, 0, 3, 1);
    for (size_t i = 0; i + 3 <= order.size(); i += 3)
        CHECK(std::set<int>(order.begin() + i, order.begin() + i + 3).size() == 3);
}

TEST_CASE("an error of the prefetch thread reaches next(), after the batches before it") {
    TemporaryDirectory dir;
    const int good = 40;                              // micro-batches before the bad one, more than the ring holds
    std::vector<uint16_t> tokens = counting(0, 301);  // 100 samples
    const int bad = static_cast<int>(sample_at(good, 100, 6)) * T + 1;
    tokens[bad] = 999;
    const std::string path = write_shard<uint16_t>(dir / "a.bin", tokens);
    const ShardSet set({path});
    TrainLoader loader(set, order_of(set, 6), 1, T, 0, 1, 0, 999);
    for (int i = 0; i < good; ++i) {
        if (i == good - 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread meets the error
        loader.next();
    }
    for (int again = 0; again < 3; ++again)
        check_error(ExitCode::bad_data, {path, fmt::format("token {} ", bad), "id 999", "999 ids"},
                    [&] { loader.next(); });

    TrainLoader fine(set, order_of(set, 6), 1, T, 0, 1, 0, 1000);
    for (int i = 0; i < 100; ++i) CHECK_NOTHROW(fine.next());
}

namespace {

// A shard that cannot be read behind its first `tokens`, as if its disk failed, until it is restored.
struct CutShard {
    TemporaryDirectory dir;
    std::string path = write_shard<uint16_t>(dir / "a.bin", counting(0, 301)), copy = dir / "copy";
    ShardSet set{{path}};

    explicit CutShard(int64_t tokens) {
        std::filesystem::copy_file(path, copy);
        std::filesystem::resize_file(path, 1024 + 2 * tokens);
    }
    // In place, or by another file under the same name.
    void restore(bool in_place) {
        if (in_place)
            std::filesystem::copy_file(copy, path, std::filesystem::copy_options::overwrite_existing);
        else
            std::filesystem::rename(copy, path);
    }
};

}  // namespace

TEST_CASE("a read that fails is repeated until it succeeds") {
    for (const bool in_place : {true, false}) {
        CAPTURE(in_place);
        CutShard shard(0);
        TrainLoader loader(shard.set, order_of(shard.set, 6), 2, T, 0, 1, 0, vocab, 9, 60);
        int asked = 0;
        CHECK(loader.wait_for(9, [&] { return ++asked < 3; }) == "");  // gave up waiting
        CHECK(asked == 3);
        shard.restore(in_place);
        CHECK(loader.wait_for(9, [] { return true; }) == "");
        for (int i = 0; i < 9; i++)
            CHECK(loader.next().tokens[T] == 3 * static_cast<int>(sample_at(2 * i + 1, 100, 6)));
    }
    CutShard shard(0);
    std::vector<int32_t> tokens(2 * T), targets(2 * T);
    int attempts = 0;
    EvalLoader(shard.set, 2, T, 0, 1, -1, vocab, 60).read(0, tokens.data(), targets.data(), [&] {
        attempts++;
        shard.restore(true);
    });
    CHECK(attempts == 1);
    CHECK(targets == std::vector<int32_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a read that fails for too long is a problem of its step, not of the steps before it") {
    CutShard shard(270);
    const SampleOrder order = order_of(shard.set, 6);
    int good = 0;  // batches before the first that cannot be read
    while (order.at(good) * T + T < 270) good++;
    REQUIRE(good > 0);
    TrainLoader loader(shard.set, order, 1, T, 0, 1, 0, vocab, 100, 0.1);
    CHECK(loader.wait_for(good, [] { return true; }) == "");
    CHECK(contains(loader.wait_for(good + 1, [] { return true; }), "a.bin ends at byte"));
    for (int i = 0; i < good; i++) CHECK(loader.next().tokens[0] == T * order.at(i));
    CHECK(contains(loader.wait_for(1, [] { return true; }), "a.bin ends at byte"));
    CHECK_THROWS_AS(loader.next(), ReadError);

    std::vector<int32_t> tokens(T), targets(T);
    const EvalLoader evaluation(shard.set, 1, T, 0, 1, -1, vocab, 0.1);
    CHECK_NOTHROW(evaluation.read(0, tokens.data(), targets.data()));
    CHECK_THROWS_AS(evaluation.read(99, tokens.data(), targets.data()), ReadError);
}

TEST_CASE("a token outside the vocabulary is no reason to read again") {
    const CountingSet data({100});
    TrainLoader loader(data.set, order_of(data.set, 1), 4, T, 0, 1, 0, 50, 20, 1e9);
    CHECK(contains(loader.wait_for(20, [] { return true; }), "but the vocabulary has 50 ids"));
}

TEST_CASE("loaders stop at once, whether or not batches were taken") {
    const CountingSet data({100});
    for (int i = 0; i < 50; ++i) {
        TrainLoader loader(data.set, order_of(data.set, 1), 1, T, 0, 1, 0, vocab);
        for (int k = 0; k < i % 7; ++k) loader.next();
    }
}

TEST_CASE("a batch stays valid until the third one after it is asked for") {
    const CountingSet data({100});
    TrainLoader loader(data.set, order_of(data.set, 9), 1, T, 0, 1, 0, vocab);
    std::vector<MicroBatch> batches;
    for (int i = 0; i < 40; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the prefetch thread gets as far as it can
        for (int k = std::max(0, i - 3); k < i; ++k)
            CHECK(batches[k].tokens[0] == data.first_tokens[sample_at(k, 33, 9)]);
        batches.push_back(loader.next());
    }
}

TEST_CASE("tokens come sorted for the embedding's backward") {
    const CountingSet data({100});
    TrainLoader loader(data.set, order_of(data.set, 9), 4, T, 0, 1, 0, vocab);
    for (int i = 0; i < 10; ++i) {
        const MicroBatch batch = loader.next();
        std::vector<int> expected(token_sort_size(4 * T));
        sort_tokens(expected.data(), batch.tokens, 4 * T);
        CHECK(std::equal(expected.begin(), expected.end(), batch.sorted));
    }
}

TEST_CASE("evaluation uses every sample once, in order, for every world and batch size") {
    const CountingSet data({100, 31, 58});
    for (int world : {1, 2, 3, 16, 70})
        for (int B : {1, 4, 5, 100}) {
            CAPTURE(world);
            CAPTURE(B);
            std::vector<int> order;
            const EvalLoader first(data.set, B, T, 0, world, -1, vocab);
            CHECK(first.batches() == (62 + B * world - 1) / (B * world));
            for (int64_t batch = 0; batch < first.batches(); ++batch)
                for (int rank = 0; rank < world; ++rank) {
                    const EvalLoader loader(data.set, B, T, rank, world, -1, vocab);
                    CHECK(loader.batches() == first.batches());
                    std::vector<int32_t> tokens(B * T, -9), targets(B * T, -9);
                    loader.read(batch, tokens.data(), targets.data());
                    int rows = 0;
                    while (rows < B && targets[rows * T] >= 0) ++rows;
                    append_rows(tokens, targets, rows, order);
                    for (int i = rows * T; i < B * T; ++i) {
                        CHECK(tokens[i] == 0);
                        CHECK(targets[i] == -1);
                    }
                }
            CHECK(order == data.first_tokens);
        }
}

TEST_CASE("evaluation: max_batches, ranges and the vocabulary") {
    const CountingSet data({100});  // 33 samples
    CHECK(EvalLoader(data.set, 4, T, 0, 2, 3, vocab).batches() == 3);
    CHECK(EvalLoader(data.set, 4, T, 0, 2, 20, vocab).batches() == 5);
    CHECK(EvalLoader(data.set, 4, T, 0, 2, 0, vocab).batches() == 0);
    std::vector<int32_t> tokens(4 * T), targets(4 * T);
    const EvalLoader loader(data.set, 4, T, 1, 2, 3, 38);
    CHECK_NOTHROW(loader.read(0, tokens.data(), targets.data()));
    CHECK(tokens[0] == 4 * T);
    check_error(ExitCode::bad_data, {"token 38", "id 38", "38 ids"},
                [&] { loader.read(1, tokens.data(), targets.data()); });
    check_error(ExitCode::failure, {"batch 3"}, [&] { loader.read(3, tokens.data(), targets.data()); });
    check_error(ExitCode::failure, {"batch -1"}, [&] { loader.read(-1, tokens.data(), targets.data()); });
}
