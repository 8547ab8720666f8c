// Embeddings at the run's width: tokens that are rare, and one that is long enough for a whole block.
#include "llmc/kernels/embedding.h"

#include <random>

#include "llmc/check/families.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kBatch = 2, kLength = 149, kTokens = kBatch * kLength;
constexpr size_t kTokenCount = kTokens, kPositions = kLength;
constexpr int kMostIds = 251;  // rows of the table that are tried

// Every second token the same.
std::vector<int> example_tokens(int V) {
    std::mt19937 engine(51);
    std::vector<int> tokens(kTokenCount);
    for (size_t i = 0; i < kTokenCount; i++)
        tokens[i] = i % 2 ? V / 2 : static_cast<int>(engine() % static_cast<uint32_t>(V));
    tokens[0] = V - 1;
    return tokens;
}

size_t position_of(size_t token, const std::vector<int>& documents) {
    return token % kPositions - static_cast<size_t>(documents.empty() ? 0 : documents[token]);
}

template <class Real>
std::string check_forward(int channels, int V, bool positions, const std::vector<int>& documents, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    const auto ids = example_tokens(V);
    const auto wte = reference::random_normal<Real>(static_cast<size_t>(V) * C, 1.0f, 52),
               wpe = reference::random_normal<Real>(kPositions * C, 0.5f, 53);
    Trial trial(stream);
    const int* tokens = trial.input(ids);
    const Real *tokens_table = trial.input(wte), *positions_table = positions ? trial.input(wpe) : nullptr;
    const int* begins = trial.input_or_none(documents);
    Real* out = trial.result<Real>("out", {{"b", kBatch}, {"t", kPositions}, {"", C}});
    trial.run_twice([&] {
        embedding_forward<Real>(out, tokens, tokens_table, positions_table, kBatch, kLength, channels, V, stream,
                                begins);
    });
    Bounded expected(0);
    for (size_t n = 0; n < kTokenCount; n++)
        for (size_t c = 0; c < C; c++) {
            double sum = static_cast<double>(to_float(wte[static_cast<size_t>(ids[n]) * C + c]));
            if (positions) sum += static_cast<double>(to_float(wpe[position_of(n, documents) * C + c]));
            expected.push_back(sum, positions ? reference::rounding_error<Real>() * (std::fabs(sum) + 1e-3) : 0.0);
        }
    trial.within(out, expected);
    return trial.problem();
}

template <class Real>
std::string check_backward(int channels, int V, bool positions, const std::vector<int>& documents, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    const auto ids = example_tokens(V);
    std::vector<int> packed(token_sort_size(kTokens)), places, packed_places;
    sort_tokens(packed.data(), ids.data(), kTokens);
    for (size_t n = 0; n < documents.size(); n++) places.push_back(static_cast<int>(position_of(n, documents)));
    if (!documents.empty())
        packed_places.resize(packed.size()), sort_tokens(packed_places.data(), places.data(), kTokens);
    const auto g = reference::random_normal<Real>(kTokenCount * C, 1.0f, 54, 0.25f);
    const auto before = reference::random_normal<float>(static_cast<size_t>(V) * C, 1.0f, 55),
               positions_before = reference::random_normal<float>(kPositions * C, 1.0f, 56);
    Trial trial(stream);
    const int *sorted = trial.input(packed), *sorted_positions = trial.input_or_none(packed_places);
    const Real* dout = trial.input(g);
    float* dwte = trial.result<float>("dwte", {{"id", static_cast<size_t>(V)}, {"", C}}, before);
    float* dwpe = positions ? trial.result<float>("dwpe", {{"t", kPositions}, {"", C}}, positions_before) : nullptr;
    trial.run_twice([&] {
        embedding_backward<Real>(dwte, dwpe, sorted, dout, kBatch, kLength, channels, V, stream, sorted_positions);
    });
    const auto expected = reference::embedding_gradient(before, positions_before, ids, reference::to_doubles(g),
                                                        kLength, channels, documents);
    trial.within(dwte, Bounded(expected.dwte, reference::kEmbeddingSumError, 1.0 + 0.25 * kTokens));
    const double rows_of_a_position = documents.empty() ? kBatch : 0.25 * kTokens;
    if (positions) trial.within(dwpe, Bounded(expected.dwpe, reference::kEmbeddingSumError, 1.0 + rows_of_a_position));
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const int C = use.channels, V = std::min(use.vocab, kMostIds);
    const bool positions = use.position_embedding;
    const auto documents = use.document_positions ? example_documents(use, kBatch, kLength) : std::vector<int>{};
    const std::string suffix = strprintf(" %s C=%d V=%d%s", type_name<Real>(), C, V,
                                         !positions           ? " without positions"
                                         : !documents.empty() ? " in documents"
                                                              : "");
    items.push_back({"embedding_forward" + suffix, "kernels", "",
                     [=](stream_t s) { return check_forward<Real>(C, V, positions, documents, s); }});
    items.push_back({"embedding_backward" + suffix, "kernels", "",
                     [=](stream_t s) { return check_backward<Real>(C, V, positions, documents, s); }});
}

}  // namespace

void add_embedding(Items& items, const KernelUse& use) { use.bf16 ? add<bf16>(items, use) : add<float>(items, use); }

}  // namespace llmc::check
