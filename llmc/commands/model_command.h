// The commands eval, sample, export and inspect, and the code that they share: it loads a model, its shape and its
// tokenizer.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/data/tokenizer.h"
#include "llmc/flags/options.h"

namespace llmc {

class WeightSource;
struct Ranks;
template <class Real>
class Trainer;

// The commands, with the options that parse_command() returned.
ExitCode evaluate_weights(Options options, const LaunchInfo& launch);  // losses and tasks
ExitCode sample_text(Options options);
ExitCode export_weights(const Options& options);  // into other programs' files
ExitCode inspect_weights(Options options);        // a micro-batch in three precisions

// The tokenizer `given` with --tokenizer, or the one found with the weights: in the run directory, the Hugging Face
// directory or the directory of the file that `from` names, or next to the training data of the run. Its end token is
// the one of the training data.
TokenizerSearch find_tokenizer(const std::string& given, const std::string& from, const WeightSource& weights);

// Throws Error(bad_data) if the training data of the weights was made with another tokenizer, as far as they say so.
void require_tokenizer_of(const WeightSource& weights, const TokenDecoder& tokenizer);

// The configuration, by flag, of the run that wrote the weights. An empty object if it is not known.
Json run_config(const std::string& from);
// Takes the flags `names` from a run's configuration, unless the command line has them.
void take_flags(const Json& config, const std::vector<std::string>& names, Options& options);

// Notes a file of weights in a run's directory that is not the run's.
void note_replaced_weights(const std::string& from);

// Calls resolve() for the model of the weights, with `surroundings` and the number of ranks.
void resolve_for(const ModelConfig& model, Options& options, ResolveInputs surroundings, const Ranks& ranks);

// Trainers of resolved options that evaluate alone, all with the same weights. Fails before anything is allocated if
// the device has no room for them together. A collective.
template <class Real>
std::vector<std::unique_ptr<Trainer<Real>>> load_models(const std::vector<Options>& options, Ranks& ranks,
                                                        const WeightSource& weights);

}  // namespace llmc
