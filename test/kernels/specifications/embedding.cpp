// Token and position embeddings: rare tokens, and one that is frequent enough for a whole block.
#include "llmc/kernels/embedding.h"

#include <random>

#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

struct Shape {
    int B, T, C, V;
    bool positions = true, favourite = true;  // every second token is the same

    size_t tokens() const { return size_t{1} * B * T; }
    size_t position_of(size_t token) const { return token % static_cast<size_t>(T); }
    std::string text() const {
        return fmt::format(" B={} T={} C={} V={}{}", B, T, C, V, positions ? "" : " without positions");
    }
};

std::vector<int> example_tokens(const Shape& s) {
    std::mt19937 engine(51);
    std::vector<int> tokens(s.tokens());
    for (size_t i = 0; i < tokens.size(); i++)
        tokens[i] = i % 2 && s.favourite ? s.V / 2 : static_cast<int>(engine() % static_cast<uint32_t>(s.V));
    tokens[0] = s.V - 1;
    return tokens;
}

template <class Real>
void forward(Trial& t, const Shape& s) {
    const size_t C = s.C;
    const auto ids = t.input(example_tokens(s));
    const auto wte = t.normal<Real>(s.V * C, 1.0f), wpe = s.positions ? t.normal<Real>(s.T * C, 0.5f) : Input<Real>();
    Real* out = t.result<Real>("out", {{"b", s.B}, {"t", s.T}, {"", C}});
    t.run_twice([&] { embedding_forward<Real>(out, ids, wte, wpe, s.B, s.T, s.C, s.V, t.stream()); });
    t.within(out, [&](size_t i) {
        double sum = wte.at(ids.values[i / C] * C + i % C);
        if (s.positions) sum += wpe.at(s.position_of(i / C) * C + i % C);
        return std::pair{sum, s.positions ? reference::rounding_error<Real>() * (std::fabs(sum) + 1e-3) : 0.0};
    });
}

std::vector<int> sorted(const std::vector<int>& tokens) {
    std::vector<int> packed(token_sort_size(static_cast<int>(tokens.size())));
    sort_tokens(packed.data(), tokens.data(), static_cast<int>(tokens.size()));
    return packed;
}

// The kernel adds its gradients to those in dwte and dwpe.
template <class Real>
void backward(Trial& t, const Shape& s) {
    const size_t C = s.C;
    const std::vector<int> ids = example_tokens(s);
    const auto by_id = t.input(sorted(ids));
    const auto dout = t.normal<Real>(s.tokens() * C, 1.0f, 0.25f);
    const auto before = t.random<float>(s.V * C, 1.0f), positions_before = t.random<float>(s.T * C, 1.0f);
    float *dwte = t.result("dwte", {{"id", s.V}, {"", C}}, before),
          *dwpe = s.positions ? t.result("dwpe", {{"t", s.T}, {"", C}}, positions_before) : nullptr;
    t.run_twice([&] { embedding_backward<Real>(dwte, dwpe, by_id, dout, s.B, s.T, s.C, s.V, t.stream()); });
    std::vector<double> tokens(before.begin(), before.end()),
        positions(positions_before.begin(), positions_before.end());
    for (size_t i = 0; i < dout.values.size(); i++) {
        const double d = to_float(dout.values[i]);
        tokens[ids[i / C] * C + i % C] += d;
        positions[s.position_of(i / C) * C + i % C] += d;
    }
    // Relative to |sum| + 1 + the mean of the terms times their largest number.
    const double error = 2e-6, of_tokens = 1.0 + 0.25 * s.tokens();
    t.within(dwte, Bounded(tokens, error, of_tokens));
    if (s.positions) t.within(dwpe, Bounded(positions, error, 1.0 + s.B));
}

template <class Real>
void add(Items& items, const Shape& s) {
    add_kernel<Real>(items, "embedding_forward", forward<Real>, s);
    add_kernel<Real>(items, "embedding_backward", backward<Real>, s);
}

}  // namespace

void add_embedding(Items& items, const KernelUse& use) {
    constexpr int kMostIds = 251;  // rows of the table that are tried
    const Shape s{2, 149, use.channels, std::min(use.vocab, kMostIds), use.position_embedding};
    with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add<Real>(items, s); });
}

void add_embedding_tests(Items& items) {
    for (const auto& [B, T, C, V] : {std::tuple{1, 1, 8, 3},
                                     {2, 7, 64, 11},
                                     {3, 33, 128, 257},
                                     {5, 50, 192, 300},
                                     {2, 125, 768, 997},
                                     {3, 11, 1600, 50},
                                     {4, 125, 264, 4}})
        for (const Shape& s : {Shape{B, T, C, V}, {B, T, C, V, true, false}, {B, T, C, V, false}})
            each_type<float, bf16>([&]<class Real>(Real) { add<Real>(items, s); });
}

}  // namespace llmc::check
