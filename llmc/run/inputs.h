// The token shards of a run and their tokenizer. They are opened before anything is allocated.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/comm/agreement.h"
#include "llmc/data/choices.h"
#include "llmc/data/order.h"
#include "llmc/data/shards.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

class RunDirectory;
struct Options;
struct ResolveInputs;

// How much of a source has been used.
struct SourceUse {
    std::string pattern;
    int64_t tokens, tokens_per_pass;
    double passes() const { return static_cast<double>(tokens) / static_cast<double>(tokens_per_pass); }
};

// The bytes of text that each token id stands for, to compute bits per byte.
struct TextBytes {
    std::vector<double> of_token;  // 0 for tokens that are not text; empty if unknown
    int64_t begin = -1;            // token that begins documents
    int prefix = 0;                // bytes of a document's first token that are not text
};

// The token that begins a set's documents; -1 if it is not known, or without a set.
int end_token_of(const ShardSet* set);
// --doc-mask: throws Error(bad_data) unless the documents of the set begin with options.end_token, a token of the
// vocabulary.
void check_end_token(const ShardSet& set, const Options& options);

struct Inputs {
    std::unique_ptr<ShardSet> train;                                     // nullptr without --train
    TrainSources sources;                                                // of `train`, a pattern each
    std::optional<SampleOrder> order;                                    // of `train`; set_order() sets it
    std::vector<std::pair<std::string, std::unique_ptr<ShardSet>>> val;  // by name
    std::vector<std::pair<std::string, std::vector<Choices>>> tasks;     // by name, --hellaswag first
    std::vector<TokenFile> task_files;                                   // that `tasks` come from
    // For each set of `val`: from the run's or the set's tokenizer, or else the mean that its sidecars give. check()
    // sets it.
    std::vector<TextBytes> val_bytes;
    TokenizerSearch tokenizer;  // the run's. check() sets that of the training set; eval sets that of the weights

    explicit Inputs(const Options& options);
    // Finds the tokenizer: --tokenizer, or a file next to the training shards. Throws Error(bad_data) if a token, an
    // example or the given tokenizer does not fit the resolved options.
    void check(const Options& options);
    // Sets the order of the training samples for resolved options; refuses stages that do not fit the run.
    void set_order(const Options& options);
    // The sources of a mixture with the tokens that the first `steps` steps of the order take. Empty for a plain
    // pattern.
    std::vector<SourceUse> sources_after(const Options& options, int64_t steps) const;
    // A line for each source of a mixture: its tokens in the whole run, the passes over it, its weights.
    std::string describe_sources(const Options& options) const;
    // Throws Error(bad_flags) if the run goes over a source of a mixture more often than --epochs allows.
    // `steps_ahead`: data steps ahead of the counted ones, after --skip-data.
    void require_enough(const Options& options, int64_t steps_ahead = 0) const;
    // Fingerprints of everything that this rank has read, except for weights (see load_weights). Call after check().
    InputFingerprints fingerprints(const Options& options) const;
    // Facts about the data that a checkpoint keeps and a resume compares:
    //   fingerprint     of the training data, its sources and their order
    //   end_token       that begins documents
    //   tokenizer_hash  of the training data
    //   validation      fingerprint of the first validation set, and how many of its tokens a validation scores
    Json facts(const Options& options) const;
    // The fingerprint of checkpoints of earlier versions, which has another form.
    std::string earlier_fingerprint() const;
    // Copies the tokenizer's table and its tokenizer.json into the run directory, so that samples and exports need
    // nothing outside of it.
    void keep_tokenizer(RunDirectory& directory) const;
    // True if `path`, in the run directory, is a tokenizer that lies next to the training shards or that the run uses.
    bool is_input(const std::string& path) const;
    // Fills in the facts about the shards that resolve() needs.
    void describe(ResolveInputs& surroundings) const;
};

// Seconds for which a read of a shard is repeated if it fails: well below --timeout-step, after which a rank that waits
// for this one would end the run.
double read_patience(const Options& options);

// ---- --bench: measures the time of a step; it needs neither data nor a run directory --------------------------------

constexpr int64_t kBenchSteps = 25, kBenchWarmup = 5;

// Makes the options those of a bench: it ends after kBenchSteps (or --stop-after), and does not validate, sample,
// resume or write anything. So --bench can be appended to any command.
void only_bench(Options& options);

// Random tokens for a bench without --train, the same on every rank.
ShardSet bench_tokens(const Options& options);

}  // namespace llmc
