// Generating text: the next token from logits, by temperature, top-k and top-p (nucleus) sampling, and the next token
// from a model. A sample is a function of the logits, the settings and the position alone, so it can be repeated.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

template <class Real>
class Transformer;

struct SamplerSettings {
    double temperature = 1.0;  // 0: the most likely token
    int top_k = 0;             // keep the k most likely tokens; 0: all
    double top_p = 1.0;        // keep the most likely tokens until their probability reaches p
    uint64_t seed = 0;
};

// The token for this position. Of equal logits, the lower id wins. A NaN logit is never chosen. Token 0 if no logit is
// finite.
int sample_token(const std::vector<float>& logits, const SamplerSettings& settings, uint64_t position);

// First token of the window of at most `longest` tokens that a model sees of `length` tokens. A full window drops its
// older half, so that the rows computed for the rest stay usable for many tokens.
int window_begin(int length, int longest);

// The token that follows `tokens`. `position` counts the sampled tokens. The result depends only on tokens, settings
// and position; rows that the model still has from earlier calls only save time. With an end token, the model sees the
// last document alone, which begins with that token.
template <class Real>
int generate_token(Transformer<Real>& model, const std::vector<int>& tokens, const SamplerSettings& settings,
                   uint64_t position, stream_t stream);

}  // namespace llmc
