// Embeddings: forward against a sum, backward against FP64 sums, the grouping of tokens against its definition.
#include "llmc/kernels/embedding.h"

#include <algorithm>
#include <map>
#include <random>

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Tokens of which some are frequent: the minimum of three uniform draws, and `favourite` (if >= 0) half of the time.
std::vector<int> random_tokens(int n, int V, uint32_t seed, int favourite = -1) {
    std::mt19937 engine(seed);
    std::vector<int> tokens(n);
    for (int& t : tokens) {
        const auto draw = [&] { return static_cast<int>(engine() % static_cast<uint32_t>(V)); };
        t = std::min({draw(), draw(), draw()});
        if (favourite >= 0 && engine() % 2 == 0) t = favourite;
    }
    return tokens;
}

std::vector<int> sorted_tokens(const std::vector<int>& tokens) {
    std::vector<int> packed(token_sort_size(static_cast<int>(tokens.size())), 0x7fffffff);
    sort_tokens(packed.data(), tokens.data(), static_cast<int>(tokens.size()));
    return packed;
}

// Where the document of each token begins: documents of 1 to 17 tokens.
std::vector<int> random_documents(int B, int T, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<int> begins;
    for (int b = 0; b < B; b++)
        for (int t = 0, begin = 0, end = 0; t < T; t++) {
            if (t == end) begin = t, end = t + 1 + static_cast<int>(engine() % 17);
            begins.push_back(begin);
        }
    return begins;
}

struct EmbeddingShape {
    int B, T, C, V;
};
const EmbeddingShape kShapes[] = {
    {1, 1, 8, 3},       {2, 7, 64, 11},    {3, 33, 128, 257}, {5, 50, 192, 300},
    {2, 125, 768, 997}, {3, 11, 1600, 50}, {4, 125, 264, 4}};  // every token is long enough for eight warps

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

TEST_CASE_TEMPLATE("embedding_forward", Real, float, bf16) {
    for (const auto [B, T, C, V] : kShapes) {
        CAPTURE(C);
        auto ids = random_tokens(B * T, V, 9);
        ids[0] = V - 1;
        const auto wte = random_normal<Real>(static_cast<size_t>(V) * C, 1.0f, 1),
                   wpe = random_normal<Real>(static_cast<size_t>(T) * C, 0.5f, 2);
        std::vector<double> expected;
        for (int n = 0; n < B * T; n++) {
            for (int c = 0; c < C; c++) {
                expected.push_back(static_cast<double>(to_float(wte[static_cast<size_t>(ids[n]) * C + c])) +
                                   to_float(wpe[static_cast<size_t>(n % T) * C + c]));
            }
        }
        const DeviceArray<Real> device_wte(wte), device_wpe(wpe);
        const DeviceArray<int> tokens(ids);
        DeviceArray<Real> out(expected.size());
        embedding_forward<Real>(out, tokens.get(), device_wte.get(), device_wpe.get(), B, T, C, V, test_stream());
        CHECK(max_relative_error(out.download(), expected, 1e-3) < rounding_error<Real>());
    }
}

TEST_CASE_TEMPLATE("embedding: positions begin anew with every document", Real, float, bf16) {
    for (const auto [B, T, C, V] : kShapes) {
        CAPTURE(C);
        const auto ids = random_tokens(B * T, V, 9), begins = random_documents(B, T, 10);
        const auto wte = random_normal<Real>(static_cast<size_t>(V) * C, 1.0f, 1),
                   wpe = random_normal<Real>(static_cast<size_t>(T) * C, 0.5f, 2),
                   g = random_normal<Real>(static_cast<size_t>(B) * T * C, 1.0f, 3, 0.25f);
        std::vector<int> positions;
        std::vector<double> expected;
        for (int n = 0; n < B * T; n++) {
            positions.push_back(n % T - begins[static_cast<size_t>(n)]);
            for (int c = 0; c < C; c++)
                expected.push_back(static_cast<double>(to_float(wte[static_cast<size_t>(ids[n]) * C + c])) +
                                   to_float(wpe[static_cast<size_t>(positions.back()) * C + c]));
        }
        const DeviceArray<Real> device_wte(wte), device_wpe(wpe), dout(g);
        const DeviceArray<int> tokens(ids), documents(begins), sorted(sorted_tokens(ids)),
            sorted_positions(sorted_tokens(positions));
        DeviceArray<Real> out(expected.size());
        embedding_forward<Real>(out, tokens.get(), device_wte.get(), device_wpe.get(), B, T, C, V, test_stream(),
                                documents.get());
        CHECK(max_relative_error(out.download(), expected, 1e-3) < rounding_error<Real>());
        const auto dwte = random_normal<float>(static_cast<size_t>(V) * C, 1.0f, 1),
                   dwpe = random_normal<float>(static_cast<size_t>(T) * C, 1.0f, 2);
        const auto gradients = reference::embedding_gradient(dwte, dwpe, ids, to_doubles(g), T, C, begins);
        DeviceArray<float> token_gradient(dwte), position_gradient(dwpe);
        embedding_backward<Real>(token_gradient, position_gradient, sorted.get(), dout.get(), B, T, C, V, test_stream(),
                                 sorted_positions.get());
        CHECK(max_relative_error(token_gradient.download(), gradients.dwte, 1.0 + 0.25 * B * T) <
              reference::kEmbeddingSumError);
        CHECK(max_relative_error(position_gradient.download(), gradients.dwpe, 1.0 + 0.25 * B * T) <
              reference::kEmbeddingSumError);
    }
}

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

TEST_CASE_TEMPLATE("embedding_backward adds to both gradients, in a fixed order", Real, float, bf16) {
    for (const auto [B, T, C, V] : kShapes) {
        for (int favourite : {-1, V / 2}) {  // the favourite token is long enough for eight warps in larger shapes
            CAPTURE(C);
            const auto ids = random_tokens(B * T, V, 9, favourite);
            const auto g = random_normal<Real>(static_cast<size_t>(B) * T * C, 1.0f, 3, 0.25f);
            const auto dwte = random_normal<float>(static_cast<size_t>(V) * C, 1.0f, 1),
                       dwpe = random_normal<float>(static_cast<size_t>(T) * C, 1.0f, 2);
            const DeviceArray<int> sorted(sorted_tokens(ids));
            const DeviceArray<Real> dout(g);
            DeviceArray<float> token_gradient(dwte), position_gradient(dwpe);
            const auto run = [&] {
                embedding_backward<Real>(token_gradient, position_gradient, sorted.get(), dout.get(), B, T, C, V,
                                         test_stream());
            };
            run();
            const auto expected = reference::embedding_gradient(dwte, dwpe, ids, to_doubles(g), T, C);
            const auto first = token_gradient.download(), first_positions = position_gradient.download();
            CHECK(max_relative_error(first, expected.dwte, 1.0 + 0.25 * B * T) < reference::kEmbeddingSumError);
            CHECK(max_relative_error(first_positions, expected.dwpe, 1.0 + B) < reference::kEmbeddingSumError);
            token_gradient.upload(dwte);
            position_gradient.upload(dwpe);
            run();
            CHECK(same_bits(token_gradient.download(), first));
            CHECK(same_bits(position_gradient.download(), first_positions));
        }
    }
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
