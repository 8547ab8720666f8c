// Validates and samples with the weights that the trainer has.
#include "llmc/run/evaluation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "llmc/base/text.h"
#include "llmc/data/loader.h"
#include "llmc/model/sampler.h"
#include "llmc/run/choice_scores.h"
#include "llmc/run/ranks.h"
#include "llmc/run/signals.h"

namespace llmc {

template <class Real>
Evaluation<Real>::Evaluation(const Options& options, const Inputs& inputs, Trainer<Real>& trainer, Watchdog& watchdog)
    : options_(options),
      inputs_(inputs),
      trainer_(trainer),
      watchdog_(watchdog),
      deadline_(deadline_after(options.max_minutes)) {
    if (options.sample_every == 0 || options.sample_tokens == 0) return;
    decoder_ = inputs.tokenizer.tokenizer;
    if (decoder_) return;
    decoder_ = TokenDecoder::token_ids();
    decoder_->set_end_token(options.end_token < options.model_config.vocab ? options.end_token : -1);
    if (trainer.comm().is_main())
        std::printf("note: samples are printed as token ids, because %s; --tokenizer FILE gives text\n",
                    inputs.tokenizer.problem.c_str());
}

template <class Real>
bool Evaluation<Real>::validates_after(int64_t step, bool last) const {
    const bool has_sets = options_.val_batches != 0 && !inputs_.val.empty();
    if (options_.val_every <= 0 || (!has_sets && inputs_.hellaswag.empty())) return false;
    return step % options_.val_every == 0 || last;
}

template <class Real>
bool Evaluation<Real>::samples_after(int64_t step, bool last) const {
    return decoder_ && step > 0 && (step % options_.sample_every == 0 || last);
}

template <class Real>
std::optional<ValRecord> Evaluation<Real>::validate(int64_t step) {
    const Options& o = options_;
    const Comm& comm = trainer_.comm();
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    const StopWaitsFor batch("this batch of the validation");
    StopPoll told_to_stop(comm);
    ValRecord record;
    record.step = step;
    for (const auto& [name, set] : inputs_.val) {
        if (o.val_batches == 0) break;
        const EvalLoader loader(*set, o.batch, o.seq, comm.rank(), comm.world(), o.val_batches, o.model_config.vocab);
        double sum = 0, count = 0;
        watchdog_.alive();
        for (int64_t i = 0; i < loader.batches(); i++) {
            if (told_to_stop()) return std::nullopt;
            loader.read(i, tokens.data(), targets.data());
            const auto loss = trainer_.evaluate(tokens.data(), targets.data());
            sum += loss.sum;
            count += loss.count;
        }
        ValLoss result{name, static_cast<float>(sum / count)};
        if (const std::optional<double> bytes = set->bytes_per_token())
            result.bits_per_byte = result.loss / std::numbers::ln2 / *bytes;
        record.losses.push_back(result);
    }
    if (!record.losses.empty()) last_loss_ = record.losses[0].loss;
    if (inputs_.hellaswag.empty()) return record;
    record.hellaswag = score_choices(trainer_, inputs_.hellaswag, watchdog_);
    return record.hellaswag ? std::optional(record) : std::nullopt;
}

template <class Real>
Sample Evaluation<Real>::print_sample(int64_t step) {
    const Options& o = options_;
    std::vector<int> tokens =
        o.prompt.empty() ? std::vector<int>{std::max(decoder_->end_token(), 0)} : decoder_->encode(o.prompt);
    const size_t prompt_length = o.prompt.empty() ? 1 : 0;  // the end token that starts a document is not shown
    const SamplerSettings settings{o.temperature, o.top_k, o.top_p, o.seed};
    const StopWaitsFor token("this token of the sample");
    StopPoll told_to_stop(trainer_.comm(), deadline_);
    Sample sample;
    int made = 0;
    for (; made < o.sample_tokens && !sample.cut_short; made++) {
        tokens.push_back(
            generate_token(trainer_.model(), tokens, settings, static_cast<uint64_t>(made), trainer_.stream()));
        sample.cut_short = told_to_stop() && made + 1 < o.sample_tokens;
    }
    const std::vector<int> shown(tokens.begin() + static_cast<long>(prompt_length), tokens.end());
    sample.text = sanitize(decoder_->decode(shown));
    if (trainer_.comm().is_main()) {
        std::printf("sample after step %lld:\n%s\n", static_cast<long long>(step), sample.text.c_str());
        if (sample.cut_short)
            std::printf("note: the sample has %d of %d tokens, because the run is stopping\n", made, o.sample_tokens);
        std::fflush(stdout);
    }
    return sample;
}

template <class Real>
void Evaluation<Real>::print_floor() const {
    if (!trainer_.comm().is_main() || !last_loss_ || !std::isfinite(*last_loss_)) return;
    const ShardSet& set = *inputs_.val[0].second;
    if (!set.sidecar().entropy_floor) return;
    const double floor = *set.sidecar().entropy_floor;
    std::printf(
        "validation loss %.4f; no model can do better on this data than %.4f nats per token (%.1f %% above it)\n",
        *last_loss_, floor, (*last_loss_ / floor - 1) * 100);
}

template class Evaluation<float>;
template class Evaluation<bf16>;

}  // namespace llmc
