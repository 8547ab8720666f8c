// Choosing the next token from logits: temperature, top-k and top-p (nucleus) sampling. A function of the logits, the
// settings and (seed, position) alone, so a sample can be repeated.
#pragma once
#include <cstdint>
#include <vector>

namespace llmc {

struct SamplerSettings {
    double temperature = 1.0;  // 0: the most likely token
    int top_k = 0;             // keep the k most likely; 0: all
    double top_p = 1.0;        // keep the most likely until their probability reaches p
    uint64_t seed = 0;
};

// The token for this position. Ties go to the lower id. A NaN logit is never chosen; without a finite one, token 0.
int sample_token(const std::vector<float>& logits, const SamplerSettings& settings, uint64_t position);

// Where the window of a model begins that has room for `longest` of `length` tokens. A full window loses its older
// half, so that what has been computed for the rest serves for many tokens.
int window_begin(int length, int longest);

}  // namespace llmc
