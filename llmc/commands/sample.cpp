// The sample command: generates text token by token.
#include "llmc/checkpoint/weight_source.h"
#include "llmc/commands/model_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "llmc/base/clock.h"
#include "llmc/data/encoder.h"
#include "llmc/model/sampler.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/train/trainer.h"

namespace llmc {
namespace {

// Longer contexts are limited to this many tokens, because memory for them is allocated at the start.
constexpr int kMostRows = 8192;

// Chooses one sequence, as long as the model and FP8 products allow.
void choose_shape(const ModelConfig& model, Options& o) {
    const int multiple = o.precision == Precision::bf16 || o.precision == Precision::fp32 ? 1
                         : model.context >= 128                                           ? 128
                                                                                          : 16;
    o.batch = 1;
    o.seq = std::max(std::min(model.context, kMostRows) / multiple * multiple, 1);
    o.recompute = Recompute::norm;  // keys and values stay, most of the rest does not
}

// Writes text to the terminal as its bytes come, whole characters at a time. Leaves out the first `hidden` bytes.
class TextStream {
public:
    explicit TextStream(size_t hidden) : hidden_(hidden) {}

    void write(const std::string& bytes) {
        const size_t hidden = std::min(hidden_, bytes.size());
        hidden_ -= hidden;
        rest_ += bytes.substr(hidden);
        const size_t whole = complete_utf8(rest_);
        put(rest_.substr(0, whole));
        rest_.erase(0, whole);
    }
    void finish() { put(rest_ + "\n"); }

private:
    static void put(const std::string& text) {
        std::fputs(sanitize(text).c_str(), stdout);
        std::fflush(stdout);
    }
    std::string rest_;
    size_t hidden_;
};

template <class Real>
class Writer {
public:
    Writer(const Options& options, const TokenDecoder& decoder, Trainer<Real>& trainer)
        : options_(options), decoder_(decoder), encoder_(decoder.encoder()), trainer_(trainer) {
        take_flags(run_config(options.from), {"seq"}, of_run_);
    }

    // Every sample of a prompt; "": the beginning of a document.
    void write(const std::string& prompt, bool echo) {
        const std::vector<int> tokens = prompt_tokens(encoder_, prompt, decoder_, trainer_.config().model);
        for (int i = 0; i < options_.num_samples; i++) {
            if (i > 0) std::puts("---");
            write_one(tokens, echo ? prompt : "", prompt.empty() ? static_cast<size_t>(decoder_.prefix_bytes()) : 0);
        }
    }

private:
    // `hidden`: bytes that the tokens of a document have in front of its text.
    void write_one(std::vector<int> tokens, const std::string& echo, size_t hidden) {
        const Options& o = options_;
        const SamplerSettings settings{o.temperature, o.top_k, o.top_p, o.seed + samples_++};
        const std::string prompt_length = plural(static_cast<int64_t>(tokens.size()), "token");
        TextStream text(hidden);
        text.write(echo);
        const double begin = monotonic_seconds();
        double first = 0;
        int made = 0;
        while (made < o.sample_tokens) {
            if (o.no_cache) trainer_.model().forget_rows();
            const int token =
                generate_token(trainer_.model(), tokens, settings, static_cast<uint64_t>(made), trainer_.stream());
            if (made++ == 0) first = monotonic_seconds();
            if (token == decoder_.end_token()) break;
            tokens.push_back(token);
            text.write(decoder_.decode({token}));
        }
        text.finish();
        const double start = first - begin, rest = monotonic_seconds() - first;
        std::fprintf(stderr, "%s of prompt and the first new token in %.3f s", prompt_length.c_str(), start);
        if (made > 1) std::fprintf(stderr, ", then %d at %.1f tokens/s", made - 1, (made - 1) / rest);
        std::fprintf(stderr, o.no_cache ? " without cache\n" : "\n");
        const int trained = of_run_.seq;
        const bool longer = static_cast<int>(tokens.size()) > trained;
        if (trained > 0 && longer && trained < trainer_.config().model.context)
            print_error("note: the run trained on sequences of {}; text beyond that is worse",
                        counted(trained, "token"));
    }

    const Options& options_;
    Options of_run_;  // seq: of the run that wrote the weights, or 0
    const TokenDecoder& decoder_;
    PromptEncoder encoder_;
    Trainer<Real>& trainer_;
    uint64_t samples_ = 0;
};

// Asks a person for a prompt. Returns false at the end of the input.
bool ask(std::string& prompt) {
    std::printf("> ");
    std::fflush(stdout);
    return static_cast<bool>(std::getline(std::cin, prompt));
}

template <class Real>
void sample(const Options& o, const TokenDecoder& decoder, Ranks& ranks, const WeightSource& weights) {
    const auto trainers = load_models<Real>({o}, ranks, weights);
    Writer<Real> writer(o, decoder, *trainers.front());
    if (!o.given.contains("prompt") && std::filesystem::is_fifo("/dev/stdin"))
        print_error("note: the pipe at standard input is not read; --prompt \"$(cat)\" takes a prompt from it");
    if (o.given.contains("prompt") || !isatty(STDIN_FILENO)) return writer.write(o.prompt, true);
    for (std::string prompt; ask(prompt);) {
        try {
            writer.write(prompt, false);
        } catch (const Error& error) {
            if (error.code() != ExitCode::bad_flags && error.code() != ExitCode::bad_data) throw;
            print_error("{}", sanitize(error.what()));  // the next prompt may be better
        }
    }
    std::puts("");
}

}  // namespace

ExitCode sample_text(Options o) {
    const std::unique_ptr<WeightSource> weights = open_weights(o.from, o.of_average);
    const TokenizerSearch search = find_tokenizer(o.tokenizer, o.from, *weights);
    TokenDecoder decoder = search.tokenizer.value_or(TokenDecoder::token_ids());
    if (!search.tokenizer) {
        decoder.set_end_token(weights->end_token);
        print_error("note: text is token ids, because {}; --tokenizer FILE gives text", search.problem);
    }
    if (o.temperature == 0 && (o.given.contains("top-k") || o.given.contains("top-p")))
        print_error("note: --top-k and --top-p have no effect with --temperature 0");
    choose_shape(weights->model, o);
    Ranks ranks(o, {});
    ranks.connect(o, {});
    ranks.watchdog.stop();  // a person may take time to think
    resolve_for(weights->model, o, {}, ranks);
    if (o.precision == Precision::fp32)
        sample<float>(o, decoder, ranks, *weights);
    else
        sample<bf16>(o, decoder, ranks, *weights);
    ranks.finish();
    return ExitCode::ok;
}

}  // namespace llmc
