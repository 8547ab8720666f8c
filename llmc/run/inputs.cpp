#include "llmc/run/inputs.h"

#include <algorithm>
#include <limits>

#include "llmc/device/error.h"

namespace llmc {
namespace {

// Documents of all sets begin with one token, which the vocabulary has.
void check_end_token(const ShardSet& set, const Options& o) {
    const std::string& path = set.path(0);
    const auto refuse = [&](const std::string& what) {
        throw Error(ExitCode::bad_data, "--doc-mask: " + what + "; " + path + ".json can say {\"end_token\": ID}");
    };
    const std::optional<int64_t> token = set.end_token();
    if (!token) refuse("which token begins the documents of " + path + " is not known");
    const auto id = static_cast<long long>(*token);
    if (id < 0 || id >= o.model_config.vocab)
        refuse(strprintf("the documents of %s should begin with token %lld%s, which a vocabulary of %d does not have",
                         path.c_str(), id, set.sidecar().end_token ? "" : ", as llm.c's do", o.model_config.vocab));
    if (id != o.end_token)
        refuse(strprintf("the documents of %s begin with token %lld, those of the first set with %d", path.c_str(), id,
                         o.end_token));
}

}  // namespace

Inputs::Inputs(const Options& options) {
    if (!options.train.empty()) train = std::make_unique<ShardSet>(std::vector<std::string>{options.train});
    for (const ValSet& set : options.val)
        val.emplace_back(set.name, std::make_unique<ShardSet>(std::vector<std::string>{set.glob}));
    if (!options.hellaswag.empty()) hellaswag = read_choices(options.hellaswag);
}

void Inputs::check(const Options& o) const {
    const auto check_set = [&](const ShardSet& set) {
        set.check_vocabulary(o.model_config.vocab);
        if (o.doc_mask) check_end_token(set, o);
    };
    if (train) check_set(*train);
    for (const auto& [name, set] : val) check_set(*set);
    check_choices(hellaswag, o.model_config.vocab, o.seq, o.hellaswag);
}

void Inputs::describe(ResolveInputs& surroundings) const {
    if (train) {
        const int64_t vocab = train->sidecar().vocab.value_or(0);
        surroundings.data_vocab = static_cast<int>(std::min<int64_t>(vocab, std::numeric_limits<int>::max()));
        surroundings.train_tokens = train->total_tokens();
    }
    const ShardSet* const first = train ? train.get() : val.empty() ? nullptr : val.front().second.get();
    const int64_t end_token = first ? first->end_token().value_or(-1) : -1;
    if (end_token == static_cast<int>(end_token)) surroundings.end_token = static_cast<int>(end_token);
    for (const auto& [name, set] : val) {
        surroundings.val_tokens.push_back(set->total_tokens());
        if (train && surroundings.trained_on.empty()) surroundings.trained_on = train->shared_file(*set);
    }
    for (const Choices& example : hellaswag)
        surroundings.hellaswag_rows += static_cast<int64_t>(example.completions.size());
}

}  // namespace llmc
