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
#include "llmc/log/run_directory.h"

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
    // Deletes the copy of an earlier run that this one overwrites.
    void keep_tokenizer(const RunDirectory& directory, bool overwrite) const;
    // Fills in the facts about the shards that resolve() needs.
    void describe(ResolveInputs& surroundings) const;
};

// ---- --bench: measures the time of a step; it needs neither data nor a run directory --------------------------------

constexpr int64_t kBenchSteps = 25, kBenchWarmup = 5;

// Makes the options those of a bench: it ends after kBenchSteps (or --stop-after), and does not validate, sample,
// resume or write anything. So --bench can be appended to any command.
void only_bench(Options& options);

// Random tokens for a bench without --train, the same on every rank.
ShardSet bench_tokens(const Options& options);

}  // namespace llmc
