// Evaluates the model between two steps: loss on validation sets, scores in tasks such as HellaSwag, and samples of
// text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/data/tokenizer.h"
#include "llmc/run/stop.h"

namespace llmc {

class PromptEncoder;
class Watchdog;
struct Inputs;
struct ModelConfig;
struct Options;
struct ValLoss;
struct ValRecord;
template <class Real>
class Trainer;

// The tokens with which a sample begins: those of the prompt, or for "" the end token, which begins a document. Throws
// if the prompt cannot be encoded, the encoder is not the decoder's, or the model does not have one of the tokens.
std::vector<int> prompt_tokens(PromptEncoder& encoder, const std::string& prompt, const TokenDecoder& decoder,
                               const ModelConfig& model);

struct Sample {
    std::string text;
    bool cut_short = false;
};

template <class Real>
class Evaluation {
public:
    Evaluation(const Options& options, const Inputs& inputs, Trainer<Real>& trainer, Watchdog& watchdog);

    bool validates_after(int64_t step, bool last) const;
    bool samples_after(int64_t step, bool last) const {
        return decoder_ && step > 0 && (step % options_.sample_every == 0 || last);
    }
    // Mean loss over each validation set, and scores in each task, in Trainer::validation_precision(). Returns nothing
    // if a signal asks some rank to stop meanwhile, or if some rank cannot read a set.
    std::optional<ValRecord> validate(int64_t step);
    // validate() also compares with this trainer, which has the same weights in BF16.
    void compare_with(Trainer<Real>& reference) { reference_ = &reference; }
    // Why this rank could not read a set in the last validate(); "" if it could.
    const std::string& unreadable() const { return unreadable_; }
    // Prints --sample-tokens tokens that follow the prompt, or the beginning of a document. A signal or the deadline
    // cuts the sample short.
    Sample print_sample(int64_t step, const Deadline& deadline);
    // If the data has a known entropy: prints how far the last loss of the first set is above it.
    void print_floor() const;

private:
    void encode_prompt();
    bool add_losses(std::vector<ValLoss>& losses);

    const Options& options_;
    const Inputs& inputs_;
    Trainer<Real>& trainer_;
    Watchdog& watchdog_;
    std::optional<TokenDecoder> decoder_;  // empty if the run prints no samples
    std::vector<int> prompt_;
    Trainer<Real>* reference_ = nullptr;
    std::optional<double> last_loss_;
    std::string unreadable_;
};

}  // namespace llmc
