// A token after those that are there, by a model and the sampler: what every sample is made of, while training and by
// train_gpt sample.
#pragma once
#include "llmc/model/sampler.h"
#include "llmc/model/transformer.h"

namespace llmc {

// `position`: of the token among the sampled ones. The result is a function of tokens, settings and position: what the
// model has left of earlier calls saves time alone. A model that was told its end token goes on from the last one
// alone, which begins the document.
template <class Real>
int generate_token(Transformer<Real>& model, const std::vector<int>& tokens, const SamplerSettings& settings,
                   uint64_t position, stream_t stream) {
    const int length = static_cast<int>(tokens.size());
    int begin = window_begin(length, model.most_tokens());
    for (int i = begin; model.end_token() && i < length; i++)
        if (tokens[static_cast<size_t>(i)] == *model.end_token()) begin = i;
    return sample_token(model.next_token_logits(tokens.data() + begin, length - begin, stream), settings, position);
}

}  // namespace llmc
