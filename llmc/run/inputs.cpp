#include "llmc/run/inputs.h"

#include <algorithm>
#include <limits>

namespace llmc {

Inputs::Inputs(const Options& options) {
    if (!options.train.empty()) train = std::make_unique<ShardSet>(std::vector<std::string>{options.train});
    for (const ValSet& set : options.val)
        val.emplace_back(set.name, std::make_unique<ShardSet>(std::vector<std::string>{set.glob}));
    if (!options.hellaswag.empty()) hellaswag = read_choices(options.hellaswag);
}

void Inputs::check(const Options& o) const {
    const int vocab = o.model_config.vocab;
    if (train) train->check_vocabulary(vocab);
    for (const auto& [name, set] : val) set->check_vocabulary(vocab);
    check_choices(hellaswag, vocab, o.seq, o.hellaswag);
}

void Inputs::describe(ResolveInputs& surroundings) const {
    if (train) {
        const int64_t vocab = train->sidecar().vocab.value_or(0);
        surroundings.data_vocab = static_cast<int>(std::min<int64_t>(vocab, std::numeric_limits<int>::max()));
        surroundings.train_tokens = train->total_tokens();
    }
    for (const auto& [name, set] : val) surroundings.val_tokens.push_back(set->total_tokens());
    for (const Choices& example : hellaswag)
        surroundings.hellaswag_rows += static_cast<int64_t>(example.completions.size());
}

}  // namespace llmc
