// Embeddings: their specifications at many shapes, the grouping of tokens, and ids outside of the vocabulary.
#include "llmc/kernels/embedding.h"

#include <algorithm>
#include <map>
#include <random>

#include "test/kernels/check_specifications.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Tokens of which some are frequent: the minimum of three uniform draws.
std::vector<int> random_tokens(int n, int V, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<int> tokens(n);
    for (int& t : tokens) {
        const auto draw = [&] { return static_cast<int>(engine() % static_cast<uint32_t>(V)); };
        t = std::min({draw(), draw(), draw()});
    }
    return tokens;
}

std::vector<int> sorted_tokens(const std::vector<int>& tokens) {
    std::vector<int> packed(token_sort_size(static_cast<int>(tokens.size())), 0x7fffffff);
    sort_tokens(packed.data(), tokens.data(), static_cast<int>(tokens.size()));
    return packed;
}

}  // namespace

TEST_CASE("sort_tokens groups tokens, in order within a group") {
    for (int n : {1, 2, 7, 1000, 5000}) {
        for (int V : {1, 2, 257, 2048, 50257, 200000, 2000000000}) {
            CAPTURE(n);
            CAPTURE(V);
            const auto tokens = random_tokens(n, V, n + V);
            std::map<int, std::vector<int>> groups;
            for (int i = 0; i < n; i++) groups[tokens[i]].push_back(i);
            std::vector<int> expected{static_cast<int>(groups.size())}, ids, starts, rows;
            for (const auto& [id, members] : groups) {
                ids.push_back(id);
                starts.push_back(static_cast<int>(rows.size()));
                rows.insert(rows.end(), members.begin(), members.end());
            }
            ids.resize(n, -1);
            starts.resize(n + 1, n);
            for (const auto& part : {ids, starts, rows}) expected.insert(expected.end(), part.begin(), part.end());
            CHECK(sorted_tokens(tokens) == expected);
        }
    }
    CHECK(sorted_tokens({}) == std::vector<int>{0, 0});
    CHECK_THROWS_WITH(sorted_tokens({5, -3}), "sort_tokens: token -3 at position 1 is negative");
}

TEST_CASE("embeddings meet their specifications") { check_specifications(check::add_embedding_tests); }

TEST_CASE("embedding_forward shows a token outside the vocabulary as a NaN row") {
    const int T = 10, C = 264, V = 4;
    const DeviceArray<float> wte(random_normal<float>(V * C, 1.0f, 1)), wpe(random_normal<float>(T * C, 1.0f, 2));
    const DeviceArray<int> tokens(std::vector<int>{0, V, 1, -1, 2, 3, 0x7fffffff, 3, 2, 1});
    DeviceArray<float> out(T * C);
    embedding_forward<float>(out, tokens.get(), wte.get(), wpe.get(), 1, T, C, V, test_stream());
    const auto result = out.download();
    for (int t = 0; t < T; t++) {
        const bool outside = t == 1 || t == 3 || t == 6;
        CHECK(all_nan(result, t * C, (t + 1) * C) == outside);
        CHECK(std::isnan(result[t * C + C / 2]) == outside);
    }
    CHECK_THROWS_AS(embedding_forward<float>(out, tokens.get(), wte.get(), wpe.get(), 1, T, 12, V, test_stream()),
                    Error);
    CHECK_THROWS_AS(
        embedding_forward<float>(out, tokens.get(), wte.get(), wpe.get(), 1 << 20, 1 << 20, 8, V, test_stream()),
        Error);
}

TEST_CASE("embedding_backward leaves out ids beyond the vocabulary, and places beyond the count") {
    const int T = 100, C = 8, V = 5, allocated = V + 8;
    std::vector<int> ids(T, V);  // long enough for the shared path
    ids[3] = V + 7;
    ids[4] = 2;
    ids[5] = 3;
    auto packed = sorted_tokens(ids);
    const DeviceArray<float> dout(std::vector<float>(T * C, 1.0f));
    for (int count : {4, 1}) {
        packed[0] = count;
        const DeviceArray<int> sorted(packed);
        DeviceArray<float> dwte(std::vector<float>(allocated * C, 0.0f)), dwpe(std::vector<float>(T * C, 0.0f));
        embedding_backward<float>(dwte, dwpe, sorted.get(), dout.get(), 1, T, C, V, test_stream());
        std::vector<float> expected(allocated * C, 0.0f);
        std::fill(expected.begin() + 2 * C, expected.begin() + (count == 1 ? 3 : 4) * C, 1.0f);
        CHECK(dwte.download() == expected);
    }
}
