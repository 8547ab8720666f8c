// The token shards of a run and their tokenizer. They are opened before anything is allocated.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/choices.h"
#include "llmc/data/shards.h"
#include "llmc/data/tokenizer.h"
#include "llmc/flags/options.h"
#include "llmc/log/metrics.h"

namespace llmc {

struct Inputs {
    std::unique_ptr<ShardSet> train;                                     // nullptr without --train
    std::vector<std::pair<std::string, std::unique_ptr<ShardSet>>> val;  // by name
    std::vector<Choices> hellaswag;                                      // empty without --hellaswag
    TokenizerSearch tokenizer;  // the tokenizer of the training set; check() sets it

    explicit Inputs(const Options& options);
    // Finds the tokenizer: --tokenizer, or a file next to the training shards. Throws Error(bad_data) if a token, an
    // example or the given tokenizer does not fit the resolved options.
    void check(const Options& options);
    // Copies the tokenizer's file into the run directory, so that samples and exports need nothing outside of it.
    void keep_tokenizer(const RunDirectory& directory) const;
    // Fills in the facts about the shards that resolve() needs.
    void describe(ResolveInputs& surroundings) const;
};

}  // namespace llmc
