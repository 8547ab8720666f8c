// Computes validation losses and scores in tasks, and prints samples.
#include "llmc/run/evaluation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "llmc/checkpoint/manifest.h"  // checksum
#include "llmc/data/encoder.h"
#include "llmc/data/loader.h"
#include "llmc/log/metrics.h"
#include "llmc/model/sampler.h"
#include "llmc/run/inputs.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

// A completion of one of this rank's examples, and the sum of its scored tokens' losses.
struct Row {
    const Choices* example;
    const Choices::Completion* completion;
    double loss = 0;
};

// Writes context and completion without its last token. Only the completion's scored tokens are targets.
void lay_out(const Row& row, int32_t* tokens, int32_t* targets) {
    std::vector<int32_t> all = row.example->context;
    all.insert(all.end(), row.completion->tokens.begin(), row.completion->tokens.end());
    const size_t first = all.size() - row.completion->scored;
    std::copy(all.begin(), all.end() - 1, tokens);
    std::copy(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(), targets + first - 1);
}

// True if the completion with the smallest loss is the right one. Of equal losses the first wins; a NaN is never right.
template <class Loss>
bool is_right(const Row* rows, Loss&& loss) {
    const Row* const end = rows + rows->example->completions.size();
    if (std::any_of(rows, end, [&](const Row& row) { return std::isnan(loss(row)); })) return false;
    const Row* const best = std::min_element(rows, end, [&](const Row& a, const Row& b) { return loss(a) < loss(b); });
    return best - rows == rows->example->label && std::isfinite(loss(*best));
}

// Lets the model answer multiple-choice examples: each completion is scored by the log-probabilities of its scored
// tokens, and the best score is the answer. Distributes the examples over the ranks; every rank gets the
// same scores. Returns nothing if a signal asks some rank to stop meanwhile. A collective.
template <class Real>
std::optional<TaskScores> score_choices(Trainer<Real>& trainer, const std::string& name,
                                        const std::vector<Choices>& examples, Watchdog& watchdog) {
    const Comm& comm = trainer.comm();
    const size_t world = static_cast<size_t>(comm.world()), B = static_cast<size_t>(trainer.config().batch),
                 T = static_cast<size_t>(trainer.config().seq);
    std::vector<Row> rows;
    for (size_t i = static_cast<size_t>(comm.rank()); i < examples.size(); i += world)
        for (const Choices::Completion& completion : examples[i].completions)
            rows.push_back({&examples[i], &completion});

    // Every rank runs the same number of batches, some of them empty, because weights may have to be gathered.
    const size_t most_rows = static_cast<size_t>(comm.host_max(static_cast<int64_t>(rows.size())));
    std::vector<int32_t> tokens(B * T), targets(B * T);
    watchdog.alive();
    StopPoll told_to_stop(comm);
    for (size_t first = 0; first < most_rows; first += B) {
        if (told_to_stop()) return std::nullopt;
        show_status(fmt::format("{}: row {} of {}", name, first, most_rows));
        const size_t end = std::min(first + B, rows.size());
        std::fill(tokens.begin(), tokens.end(), 0);
        std::fill(targets.begin(), targets.end(), -1);
        for (size_t r = first; r < end; r++) lay_out(rows[r], &tokens[(r - first) * T], &targets[(r - first) * T]);
        const std::vector<float> losses = trainer.token_losses(tokens.data(), targets.data());
        for (size_t r = first; r < end; r++)
            for (size_t t = 0; t < T; t++) rows[r].loss += static_cast<double>(losses[(r - first) * T + t]);
        watchdog.alive();
    }

    std::vector<int64_t> right(2);
    for (size_t r = 0; r < rows.size(); r += rows[r].example->completions.size()) {
        right[0] += is_right(&rows[r], [](const Row& row) { return row.loss; });
        right[1] += is_right(&rows[r], [](const Row& row) { return row.loss / row.completion->length; });
    }
    right = sum_over_ranks(comm, right);
    const double count = static_cast<double>(examples.size());
    return TaskScores{name, static_cast<int64_t>(examples.size()), static_cast<double>(right[0]) / count,
                      static_cast<double>(right[1]) / count};
}

// Bits per byte of text, as nanochat counts them: the loss of the targets that are text, by the bytes of these targets.
class BitsPerByte {
public:
    explicit BitsPerByte(const TextBytes& bytes) : bytes_(bytes) {}

    void add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
             const std::vector<float>& losses) {
        for (size_t i = 0; i < targets.size(); i++) {
            const double bytes = targets[i] < 0 ? 0 : bytes_.of_token[static_cast<size_t>(targets[i])];
            if (bytes == 0) continue;
            sums_[0] += static_cast<double>(losses[i]);
            sums_[1] += bytes - (tokens[i] == bytes_.begin ? bytes_.prefix : 0);
        }
    }

    // The result over all ranks; nothing if no text was added. A collective.
    std::optional<double> result(const Comm& comm) const {
        const std::vector<double> sums = sum_over_ranks(comm, sums_);
        return sums[1] > 0 ? std::optional(sums[0] / std::numbers::ln2 / sums[1]) : std::nullopt;
    }

private:
    const TextBytes& bytes_;
    std::vector<double> sums_ = {0, 0};  // nats and bytes on this rank
};

}  // namespace

std::vector<int> prompt_tokens(PromptEncoder& encoder, const std::string& prompt, const TokenDecoder& decoder,
                               const ModelConfig& model) {
    const std::vector<int> tokens =
        prompt.empty() ? std::vector<int>{std::max(decoder.end_token(), 0)} : encoder.encode(prompt);
    if (!encoder.hash().empty() && !decoder.hash().empty() && encoder.hash() != decoder.hash())
        refuse_data(
            "--prompt: {} is not the tokenizer that the training data was made with (tokenizer_hash {}, not {})",
            decoder.encoder(), encoder.hash(), decoder.hash());
    if (tokens.empty()) refuse("--prompt: '{}' contains no token", prompt);
    for (const int token : tokens)
        if (token >= model.vocab)
            refuse_data("the prompt has token id {}, which is outside the model's vocabulary of {}", token,
                        model.vocab);
    return tokens;
}

template <class Real>
Evaluation<Real>::Evaluation(const Options& options, const Inputs& inputs, Trainer<Real>& trainer, Watchdog& watchdog)
    : options_(options), inputs_(inputs), trainer_(trainer), watchdog_(watchdog) {
    if (options.sample_every == 0 || options.sample_tokens == 0) return;
    decoder_ = inputs.tokenizer.tokenizer;
    if (!decoder_) {
        decoder_ = TokenDecoder::token_ids();
        decoder_->set_end_token(options.end_token < options.model.vocab ? options.end_token : -1);
        if (trainer.comm().is_main())
            print_line("note: samples are printed as token ids, because {}; --tokenizer FILE gives text",
                       inputs.tokenizer.problem);
    }
    encode_prompt();
}

// Rank 0 asks for the tokens of the prompt; the other ranks get them, or its error.
template <class Real>
void Evaluation<Real>::encode_prompt() {
    const Comm& comm = trainer_.comm();
    std::string ids;
    do_together(comm, [&] {
        if (!comm.is_main()) return;
        PromptEncoder encoder(decoder_->encoder());
        prompt_ = prompt_tokens(encoder, options_.prompt, *decoder_, options_.model);
        for (const int id : prompt_) ids += std::to_string(id) + " ";
    });
    prompt_.clear();
    for (const std::string& id : words_in(broadcast_text(comm, ids))) prompt_.push_back(number_in<int>(id).value());
}

template <class Real>
bool Evaluation<Real>::validates_after(int64_t step, bool last) const {
    const bool has_sets = options_.val_batches != 0 && !inputs_.val.empty();
    if (options_.val_every <= 0 || (!has_sets && inputs_.tasks.empty())) return false;
    return step % options_.val_every == 0 || last;
}

// Adds the loss on each set. Returns false if a signal asks some rank to stop meanwhile, or if some rank cannot read a
// set: that rank goes on with empty batches, because the others wait for it, and all of them learn it at the set's end.
template <class Real>
bool Evaluation<Real>::add_losses(std::vector<ValLoss>& losses) {
    const Options& o = options_;
    const Comm& comm = trainer_.comm();
    std::vector<int32_t> tokens(static_cast<size_t>(o.batch) * o.seq), targets(tokens.size());
    StopPoll told_to_stop(comm);
    for (size_t s = 0; s < inputs_.val.size(); s++) {
        const auto& [name, set] = inputs_.val[s];
        BitsPerByte bits(inputs_.val_bytes[s]);
        const EvalLoader loader(*set, o.batch, o.seq, comm.rank(), comm.world(), o.val_batches, o.model.vocab,
                                read_patience(o));
        Divergence divergence;
        double sum = 0, count = 0;
        for (int64_t i = 0; i < loader.batches(); i++) {
            watchdog_.alive();
            if (told_to_stop(!unreadable_.empty())) return false;
            if (unreadable_.empty())
                unreadable_ =
                    failure_of([&] { loader.read(i, tokens.data(), targets.data(), [&] { watchdog_.alive(); }); }).text;
            if (!unreadable_.empty()) {
                std::fill(tokens.begin(), tokens.end(), 0);
                std::fill(targets.begin(), targets.end(), -1);
            }
            show_status(
                fmt::format("validation{}: batch {} of {}", name.empty() ? "" : " " + name, i + 1, loader.batches()));
            const auto loss = trainer_.evaluate(tokens.data(), targets.data());
            sum += loss.sum;
            count += loss.count;
            if (!inputs_.val_bytes[s].of_token.empty()) bits.add(tokens, targets, trainer_.token_losses());
            if (reference_) divergence.add(trainer_, *reference_, tokens.data(), targets.data());
        }
        if (comm.host_max(!unreadable_.empty()) > 0) return false;
        const std::string scored = fmt::format("{} {} {} {:d}", set->fingerprint(), count, o.seq, o.doc_mask);
        losses.push_back(
            {name, static_cast<float>(sum / count), bits.result(comm), checksum(scored.data(), scored.size())});
        if (reference_) losses.back().against_bf16 = divergence.result(comm);
    }
    return true;
}

template <class Real>
std::optional<ValRecord> Evaluation<Real>::validate(int64_t step) {
    const StopWaitsFor batch("this batch of the validation");
    const auto in_its_precision = trainer_.validation();
    ValRecord record;
    record.step = step;
    record.precision = trainer_.validation_precision();
    unreadable_.clear();
    if (options_.val_batches != 0 && !add_losses(record.losses)) return std::nullopt;
    if (!record.losses.empty()) last_loss_ = record.losses[0].loss;
    for (const auto& [name, examples] : inputs_.tasks) {
        const std::optional<TaskScores> scores = score_choices(trainer_, name, examples, watchdog_);
        if (!scores) return std::nullopt;
        record.tasks.push_back(*scores);
    }
    return record;
}

template <class Real>
Sample Evaluation<Real>::print_sample(int64_t step, const Deadline& deadline) {
    const Options& o = options_;
    std::vector<int> tokens = prompt_;
    // The token that begins documents is not shown.
    const bool begins = o.prompt.empty() || tokens[0] == decoder_->end_token();
    const SamplerSettings settings{o.temperature, o.top_k, o.top_p, o.seed};
    const StopWaitsFor token("this token of the sample");
    StopPoll told_to_stop(trainer_.comm(), deadline);
    Sample sample;
    int made = 0;
    for (; made < o.sample_tokens && !sample.cut_short; made++) {
        watchdog_.alive();
        tokens.push_back(
            generate_token(trainer_.model(), tokens, settings, static_cast<uint64_t>(made), trainer_.stream()));
        sample.cut_short = told_to_stop() && made + 1 < o.sample_tokens;
    }
    const std::string text = decoder_->decode({tokens.begin() + (begins ? 1 : 0), tokens.end()});
    sample.text = sanitize(text.substr(std::min<size_t>(text.size(), static_cast<size_t>(decoder_->prefix_bytes()))));
    if (trainer_.comm().is_main()) {
        print_line("sample after step {}:\n{}", step, sample.text);
        if (sample.cut_short)
            print_line("note: the sample has {} of {} tokens, because the run is stopping", made, o.sample_tokens);
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
    print_line(
        "validation loss {:.4f}; no model can do better on this data than {:.4f} nats per token ({:.1f} % above it)",
        *last_loss_, floor, (*last_loss_ / floor - 1) * 100);
}

template class Evaluation<float>;
template class Evaluation<bf16>;

}  // namespace llmc
