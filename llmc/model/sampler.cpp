// Sampling a token from logits: see sampler.h.
// build: optimized
#include "llmc/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llmc/model/transformer.h"

namespace llmc {

// Uniform in [0, 1) from (seed, position), 53 bits.
static double uniform(uint64_t seed, uint64_t position) {
    return static_cast<double>(mix64(seed + kGolden64 * (position + 1)) >> 11) * 0x1p-53;
}

int sample_token(const std::vector<float>& logits, const SamplerSettings& settings, uint64_t position) {
    std::vector<int> ids;
    for (int i = 0; i < static_cast<int>(logits.size()); i++)
        if (std::isfinite(logits[i])) ids.push_back(i);
    if (ids.empty()) return 0;
    auto logit = [&](int id) { return static_cast<double>(logits[id]); };
    std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logit(a) > logit(b); });
    if (settings.temperature <= 0) return ids[0];
    if (settings.top_k > 0 && static_cast<size_t>(settings.top_k) < ids.size()) ids.resize(settings.top_k);

    std::vector<double> probability(ids.size());
    for (size_t i = 0; i < ids.size(); i++)
        probability[i] = std::exp((logit(ids[i]) - logit(ids[0])) / settings.temperature);
    const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
    double kept = 0;
    size_t count = 0;
    while (count < ids.size() && (count == 0 || kept < settings.top_p * total)) kept += probability[count++];

    double left = uniform(settings.seed, position) * kept;
    for (size_t i = 0; i < count; i++) {
        left -= probability[i];
        if (left < 0) return ids[i];
    }
    return ids[count - 1];
}

int window_begin(int length, int longest) {
    if (length <= longest) return 0;
    const int half = std::max(longest / 2, 1);
    return round_up(length - longest, half);
}

template <class Real>
int generate_token(Transformer<Real>& model, const std::vector<int>& tokens, const SamplerSettings& settings,
                   uint64_t position, stream_t stream) {
    const int length = static_cast<int>(tokens.size());
    int begin = window_begin(length, model.most_tokens());
    for (int i = begin; model.end_token() && i < length; i++)
        if (tokens[i] == *model.end_token()) begin = i;
    return sample_token(model.next_token_logits(tokens.data() + begin, length - begin, stream), settings, position);
}

template int generate_token(Transformer<float>&, const std::vector<int>&, const SamplerSettings&, uint64_t, stream_t);
template int generate_token(Transformer<bf16>&, const std::vector<int>&, const SamplerSettings&, uint64_t, stream_t);

}  // namespace llmc
