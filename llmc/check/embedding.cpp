// Embeddings at the run's width: tokens that are rare, and one that is long enough for a whole block.
#include "llmc/kernels/embedding.h"

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

template <class Real>
std::string check_forward(int channels, int V, bool positions, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    const auto ids = example_tokens(V);
    const auto wte = reference::random_normal<Real>(static_cast<size_t>(V) * C, 1.0f, 52),
               wpe = reference::random_normal<Real>(kPositions * C, 0.5f, 53);
    Trial trial(stream);
    const int* tokens = trial.input(ids);
    const Real *tokens_table = trial.input(wte), *positions_table = positions ? trial.input(wpe) : nullptr;
    Real* out = trial.result<Real>("out", {{"b", kBatch}, {"t", kPositions}, {"", C}});
    trial.run_twice([&] {
        embedding_forward<Real>(out, tokens, tokens_table, positions_table, kBatch, kLength, channels, V, stream);
    });
    Bounded expected(0);
    for (size_t n = 0; n < kTokenCount; n++)
        for (size_t c = 0; c < C; c++) {
            double sum = static_cast<double>(to_float(wte[static_cast<size_t>(ids[n]) * C + c]));
            if (positions) sum += static_cast<double>(to_float(wpe[n % kPositions * C + c]));
            expected.push_back(sum, positions ? reference::rounding_error<Real>() * (std::fabs(sum) + 1e-3) : 0.0);
        }
    trial.within(out, expected);
    return trial.problem();
}

template <class Real>
std::string check_backward(int channels, int V, bool positions, stream_t stream) {
    const size_t C = static_cast<size_t>(channels);
    const auto ids = example_tokens(V);
    std::vector<int> packed(token_sort_size(kTokens));
    sort_tokens(packed.data(), ids.data(), kTokens);
    const auto g = reference::random_normal<Real>(kTokenCount * C, 1.0f, 54, 0.25f);
    const auto before = reference::random_normal<float>(static_cast<size_t>(V) * C, 1.0f, 55),
               positions_before = reference::random_normal<float>(kPositions * C, 1.0f, 56);
    Trial trial(stream);
    const int* sorted = trial.input(packed);
    const Real* dout = trial.input(g);
    float* dwte = trial.result<float>("dwte", {{"id", static_cast<size_t>(V)}, {"", C}}, before);
    float* dwpe = positions ? trial.result<float>("dwpe", {{"t", kPositions}, {"", C}}, positions_before) : nullptr;
    trial.run_twice([&] { embedding_backward<Real>(dwte, dwpe, sorted, dout, kBatch, kLength, channels, V, stream); });
    const auto expected =
        reference::embedding_gradient(before, positions_before, ids, reference::to_doubles(g), kLength, channels);
    trial.within(dwte, Bounded(expected.dwte, reference::kEmbeddingSumError, 1.0 + 0.25 * kTokens));
    if (positions) trial.within(dwpe, Bounded(expected.dwpe, reference::kEmbeddingSumError, 1.0 + kBatch));
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const int C = use.channels, V = std::min(use.vocab, kMostIds);
    const bool positions = use.position_embedding;
    const std::string suffix =
        strprintf(" %s C=%d V=%d%s", type_name<Real>(), C, V, positions ? "" : " without positions");
    items.push_back({"embedding_forward" + suffix, "kernels", "",
                     [=](stream_t s) { return check_forward<Real>(C, V, positions, s); }});
    items.push_back({"embedding_backward" + suffix, "kernels", "",
                     [=](stream_t s) { return check_backward<Real>(C, V, positions, s); }});
}

}  // namespace

void add_embedding(Items& items, const KernelUse& use) { use.bf16 ? add<bf16>(items, use) : add<float>(items, use); }

}  // namespace llmc::check
